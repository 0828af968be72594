--- Inline code completion by SpecEngine: wires the parts, and is what keys and users call.

local item = require("specengine.item")
local keys = require("specengine.keys")
local server = require("specengine.server")
local settings_module = require("specengine.settings")
local status = require("specengine.status")

local M = {}

local settings = settings_module.read(nil)
local is_on = true
local is_set_up = false
local ghost ---@type table the module that asks and draws: core or own
local last_key_ms = {} ---@type table<integer, number> by buffer

local function has_core() return vim.lsp.inline_completion ~= nil end

---@param bufnr integer
---@return boolean
local function is_wanted(bufnr)
  if not vim.api.nvim_buf_is_loaded(bufnr) or vim.bo[bufnr].buftype ~= "" then return false end
  local filetype = vim.bo[bufnr].filetype
  return filetype ~= "" and not vim.tbl_contains(settings.disabled_filetypes, filetype)
end

---@param bufnr integer
---@return boolean
local function is_on_in(bufnr)
  return is_on and is_wanted(bufnr) and vim.b[bufnr].specengine ~= false
end

local function on_key(event) last_key_ms[event.buf] = vim.uv.hrtime() / 1e6 end

local function on_answer(bufnr)
  local since = last_key_ms[bufnr]
  if not since then return end
  last_key_ms[bufnr] = nil
  status.update({ last_ms = vim.uv.hrtime() / 1e6 - since })
end

local function on_filetype(event)
  if is_wanted(event.buf) then
    server.attach(event.buf)
  else
    server.detach(event.buf)
  end
end

local function make_autocmds()
  local group = vim.api.nvim_create_augroup("specengine", { clear = true })
  local function on(events, callback)
    vim.api.nvim_create_autocmd(events, { group = group, callback = callback })
  end
  on("FileType", on_filetype)
  on({ "TextChangedI", "TextChangedP", "InsertEnter" }, on_key)
  on("BufDelete", function(event) last_key_ms[event.buf] = nil end)
  on("ColorScheme", M.set_highlight)
end

--- Give the grey text its colour, unless the user's colours have one for it.
function M.set_highlight()
  vim.api.nvim_set_hl(0, "SpecEngineGhost", { default = true, link = "NonText" })
end

--- Take settings over and begin; a second call begins anew.
---@param given table? see doc/specengine.txt
function M.setup(given)
  local problems
  settings, problems = settings_module.read(given)
  for _, problem in ipairs(problems) do
    status.take_notice(problem)
    server.notify("SpecEngine: " .. problem, vim.log.levels.WARN)
  end
  if vim.fn.has("nvim-0.10") == 0 then
    server.notify("SpecEngine needs Neovim 0.10 or newer.", vim.log.levels.ERROR)
    return
  end
  local is_again = is_set_up
  is_set_up, is_on = true, settings.enabled
  local uses_core = settings.client ~= "own" and has_core()
  if settings.client == "core" and not uses_core then
    server.notify("SpecEngine: client = 'core' needs Neovim 0.12.", vim.log.levels.WARN)
  end
  M.set_highlight()
  -- Some plugin managers never look into plugin/ of a repository's folder.
  require("specengine.command").define()
  ghost = require(uses_core and "specengine.core" or "specengine.own")
  ghost.setup({ is_on = is_on_in, on_answer = on_answer })
  server.setup({
    settings = function() return settings end,
    on_start = function(client)
      if ghost.begin then ghost.begin(client) end
    end,
    on_attach = ghost.attach,
    on_detach = ghost.detach,
    buffers = function() return vim.tbl_filter(is_wanted, vim.api.nvim_list_bufs()) end,
  })
  keys.setup(settings.keys, M.has_suggestion)
  make_autocmds()
  if is_again then
    server.restart()
  else
    server.attach_all()
  end
end

--- Begin with what was set, or with the defaults if nothing was.
function M.ensure_setup()
  if not is_set_up then M.setup(vim.g.specengine) end
end

--- Return the settings in force.
---@return specengine.Settings
function M.settings() return settings end

--- Return who asks and draws: "core" or "own".
---@return string
function M.client_kind() return ghost == package.loaded["specengine.core"] and "core" or "own" end

--- Return whether there is a suggestion at the cursor.
---@return boolean
function M.has_suggestion() return ghost ~= nil and ghost.current() ~= nil end

--- Tell the server that a suggestion was accepted, or how many bytes of it.
---@param raw table
---@param accepted_len integer? nil for all of it
local function tell_accepted(raw, accepted_len)
  if accepted_len then
    local params = { item = raw, acceptedLength = accepted_len }
    server.notify_server("textDocument/didPartiallyAcceptCompletion", params)
  elseif raw.command then
    local params = { command = raw.command.command, arguments = raw.command.arguments }
    server.request("workspace/executeCommand", params, function() end)
  end
end

--- Put a part of the suggestion into the text; return whether there was one.
---@param part fun(rest: string): string
---@return boolean
local function accept(part)
  local shown, rest = ghost.current()
  if not shown or not rest then return false end
  local taken = part(rest)
  if taken == rest then ghost.clear() end
  last_key_ms[vim.api.nvim_get_current_buf()] = vim.uv.hrtime() / 1e6
  local typed_len = #shown.text - #rest
  item.insert(shown, taken, rest)
  tell_accepted(shown.raw, taken ~= rest and typed_len + #taken or nil)
  return true
end

--- Accept the whole suggestion.
function M.accept()
  return accept(function(rest) return rest end)
end

--- Accept its next word.
function M.accept_word() return accept(item.first_word) end

--- Accept its next line.
function M.accept_line() return accept(item.first_line) end

--- Show the next of several suggestions.
function M.next() ghost.select(1) end

--- Show the one before.
function M.previous() ghost.select(-1) end

--- Take the suggestion away until the text changes.
function M.dismiss() ghost.clear() end

--- Ask for a suggestion now.
function M.request() ghost.request() end

--- Turn suggestions on or off; return whether they are on.
---@param on boolean? the other state if nil
---@return boolean
function M.toggle(on)
  is_on = on == nil and not is_on or on == true
  ghost.refresh()
  status.update({})
  return is_on
end

--- Start the language server anew.
function M.restart() server.restart() end

--- Return the words for a status line; empty in a window without a file.
---@return string
function M.status_text()
  if vim.bo.buftype ~= "" then return "" end
  return status.text(is_on_in(vim.api.nvim_get_current_buf()))
end

return M
