--- Begins by itself with the defaults or with `vim.g.specengine`; `require("specengine").setup()`
--- in your init.lua comes first.

if vim.g.loaded_specengine then return end
vim.g.loaded_specengine = true

require("specengine.command").define()

-- A plugin manager calls setup after this file, in the same turn of the loop.
vim.schedule(function() require("specengine").ensure_setup() end)
