"""Small networks beside a target, trained to guess how it goes on."""
