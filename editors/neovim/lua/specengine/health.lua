--- `:checkhealth specengine`.

local M = {}

local function check_neovim(specengine)
  vim.health.start("Neovim")
  local version = tostring(vim.version())
  if vim.fn.has("nvim-0.10") == 0 then
    vim.health.error(version .. " is too old", "Neovim 0.10 or newer is needed.")
    return
  end
  local who = specengine.client_kind() == "core" and "Neovim itself (vim.lsp.inline_completion)"
    or "this plugin"
  vim.health.ok(("%s; %s asks and draws"):format(version, who))
end

local function check_program(settings)
  vim.health.start("Language server")
  local found = require("specengine.program").find(settings)
  if not found.cmd then
    vim.health.error(found.source, {
      "In the checkout of SpecEngine: make setup",
      'Or: require("specengine").setup({ cmd = "/path/to/specengine-lsp" })',
      "Then: :SpecEngine restart",
    })
    return
  end
  local path = table.concat(found.cmd, " ")
  local words = vim.list_extend({ found.cmd[1] }, { "--version" })
  local result = vim.system(words, { text = true, timeout = 20000 }):wait()
  if result.code == 0 then
    vim.health.ok(("%s (%s), version %s"):format(path, found.source, vim.trim(result.stdout)))
  else
    local said = vim.trim(result.stderr or "")
    vim.health.error(("%s --version ended with code %d"):format(path, result.code), said)
  end
end

local function check_running(status)
  vim.health.start("What runs")
  local current = status.current
  local engine = current.engine
  if current.server == "idle" then
    vim.health.info("The server starts with the first file of code.")
  elseif current.server ~= "running" then
    vim.health.warn(("server: %s. %s"):format(current.server, current.reason))
  elseif not engine then
    vim.health.info("The server runs; its engine has not answered yet.")
  elseif engine.state == "failed" then
    vim.health.error("The model cannot be loaded: " .. engine.detail)
  else
    local text = "engine: %s, model %s, drafter %s"
    vim.health.ok(text:format(engine.state, engine.model, engine.drafter))
  end
  for _, notice in ipairs(current.notices) do
    vim.health.info("notice: " .. notice)
  end
end

local function check_keys(settings)
  vim.health.start("Keys of insert mode")
  local keys = require("specengine.keys")
  for action, key in vim.spairs(settings.keys) do
    local other = key and keys.taken_by(key)
    if not key then
      vim.health.info(action .. ": none")
    elseif other then
      local advice = "Give one of both another key, or call require('specengine').%s() from yours."
      vim.health.warn(("%s: %s is mapped to %s"):format(action, key, other), advice:format(action))
    else
      vim.health.ok(("%s: %s"):format(action, key))
    end
  end
end

local function check_others()
  local others = vim.tbl_filter(function(client)
    local provider = client.server_capabilities and client.server_capabilities.inlineCompletionProvider
    return client.name ~= "specengine" and provider ~= nil and provider ~= false
  end, vim.lsp.get_clients())
  for _, client in ipairs(others) do
    vim.health.warn(client.name .. " suggests inline too; both would write in the same place.")
  end
end

--- Report.
function M.check()
  local specengine = require("specengine")
  specengine.ensure_setup()
  check_neovim(specengine)
  check_program(specengine.settings())
  check_running(require("specengine.status"))
  check_keys(specengine.settings())
  check_others()
end

return M
