--- Starts, stops and restarts the one language server of this Neovim, and hears what it says.

local program = require("specengine.program")
local status = require("specengine.status")

local M = {}

local NAME = "specengine"
local MAX_RESTARTS = 3
local RESTART_PAUSE_MS = 1000

--- So long a server must have run to be started again by itself as if it were the first time.
local STABLE_S = 60

---@class specengine.Parts
---@field settings fun(): specengine.Settings
---@field on_start fun(client: vim.lsp.Client)
---@field on_attach fun(bufnr: integer)
---@field on_detach fun(bufnr: integer)
---@field buffers fun(): integer[] those that want the server

---@type specengine.Parts
local parts
local client_id ---@type integer?
local restarts, started_at = 0, 0
local is_missing_told = false
local last_end = "" -- how a server ended, in words
local folders = {} ---@type table<string, true> the projects that the server knows

--- Return the running client.
---@return vim.lsp.Client?
function M.client()
  local client = client_id and vim.lsp.get_client_by_id(client_id)
  if not client then return nil end
  local is_stopped = vim.fn.has("nvim-0.11") == 1 and client:is_stopped() or false
  return not is_stopped and client or nil
end

---@param name string
---@param ... any
local function call(name, ...)
  local client = M.client()
  if not client then return end
  -- In 0.10 methods are called with a dot.
  if vim.fn.has("nvim-0.11") == 1 then return client[name](client, ...) end
  return client[name](...)
end

--- Send a request.
---@return boolean? is_sent
---@return integer? id
function M.request(method, params, handler, bufnr)
  return call("request", method, params, handler, bufnr)
end

--- Send a notification.
function M.notify_server(method, params) call("notify", method, params) end

--- Let a request end.
---@param id integer
function M.cancel(id) call("cancel_request", id) end

--- Show one line that never asks for a key: a longer one would stop the typing user.
---@param text string
---@param level integer
function M.notify(text, level)
  local line = vim.trim((text:gsub("%s+", " ")))
  local room = vim.v.echospace - 1
  if vim.fn.strdisplaywidth(line) > room then
    line = vim.fn.strcharpart(line, 0, math.max(room - 1, 1)) .. "…"
  end
  vim.notify(line, level)
end

local LEVELS = { vim.log.levels.ERROR, vim.log.levels.WARN, vim.log.levels.INFO }

local HANDLERS = {
  ["window/showMessage"] = function(_, params)
    status.take_notice(params.message)
    M.notify(params.message, LEVELS[params.type] or vim.log.levels.INFO)
    return vim.NIL
  end,
  ["window/logMessage"] = function(_, params)
    status.take_line(params.message)
    return params
  end,
  ["specengine/status"] = function(_, params) status.take_engine(params) end,
}

--- Return what this client can do; positions are bytes, as Neovim's own.
local function capabilities()
  local all = vim.lsp.protocol.make_client_capabilities()
  all.general.positionEncodings = { "utf-8" }
  all.textDocument.inlineCompletion = { dynamicRegistration = false }
  return all
end

local function give_up(how)
  local text = "the language server ended %d times, the last time with %s."
  local reason = text:format(restarts, how)
  status.begin("failed", reason)
  M.notify("SpecEngine: " .. reason .. " See :SpecEngine status.", vim.log.levels.ERROR)
end

--- Start a server again that has died, if it does not die again and again.
---@param how string
local function start_again(how)
  if vim.v.exiting ~= vim.NIL then return end
  if vim.uv.now() / 1000 - started_at > STABLE_S then restarts = 0 end
  restarts = restarts + 1
  if restarts > MAX_RESTARTS then return give_up(how) end
  status.begin("starting", "it ended with " .. how)
  vim.defer_fn(M.attach_all, RESTART_PAUSE_MS)
end

--- Return a way to start a server whose end is told by us: Neovim's own line is so long that it
--- waits for a key, in the middle of a word.
---@param cmd string[]
---@return fun(dispatchers: vim.lsp.rpc.Dispatchers): vim.lsp.rpc.PublicClient
local function starter(cmd)
  return function(dispatchers)
    return vim.lsp.rpc.start(cmd, {
      notification = dispatchers.notification,
      server_request = dispatchers.server_request,
      on_error = dispatchers.on_error,
      on_exit = function(code, signal)
        last_end = signal ~= 0 and ("signal %d"):format(signal) or ("code %d"):format(code)
        dispatchers.on_exit(0, 0)
      end,
    })
  end
end

local function on_exit(_, _, id)
  if id ~= client_id then return end -- one that was asked to end
  client_id = nil
  vim.schedule(function() start_again(last_end) end)
end

--- Return the project that a buffer is a part of: the server reads its rules of what to ignore.
---@param bufnr integer
---@return string?
local function project_of(bufnr) return vim.fs.root(bufnr, { ".git", ".hg", ".jj" }) end

--- Tell the server of the project of a buffer, unless it knows.
---@param bufnr integer
local function tell_project(bufnr)
  local folder = project_of(bufnr)
  if not folder or folders[folder] then return end
  folders[folder] = true
  local added = { { uri = vim.uri_from_fname(folder), name = vim.fs.basename(folder) } }
  local event = { added = added, removed = {} }
  M.notify_server("workspace/didChangeWorkspaceFolders", { event = event })
end

---@param cmd string[]
---@param server_settings table
---@param folder string?
---@return vim.lsp.ClientConfig
local function config(cmd, server_settings, folder)
  return {
    name = NAME,
    cmd = starter(cmd),
    root_dir = folder,
    -- Neovim would send an empty list for an empty table.
    init_options = next(server_settings) and server_settings or vim.empty_dict(),
    capabilities = capabilities(),
    handlers = HANDLERS,
    -- The engine hears of each key at once, also of one that no request follows.
    flags = { debounce_text_changes = 0 },
    on_init = function(client)
      if client.offset_encoding ~= "utf-8" then
        local text = "the language server counts columns in %s; this plugin needs utf-8."
        M.notify("SpecEngine: " .. text:format(client.offset_encoding), vim.log.levels.ERROR)
      end
      started_at = vim.uv.now() / 1000
      status.update({ server = "running", reason = "" })
      parts.on_start(client)
    end,
    on_attach = function(_, bufnr)
      tell_project(bufnr)
      parts.on_attach(bufnr)
    end,
    on_exit = on_exit,
  }
end

---@param found specengine.Program
local function tell_missing(found)
  status.begin("missing", found.source)
  if is_missing_told then return end
  is_missing_told = true
  status.take_notice(found.source)
  local text = "SpecEngine: no language server. :checkhealth specengine tells more."
  M.notify(text, vim.log.levels.WARN)
end

--- Attach a buffer to the server, which is started for the first one.
---@param bufnr integer
function M.attach(bufnr)
  if status.current.server == "failed" then return end
  if not M.client() then
    local found = program.find(parts.settings())
    if not found.cmd then return tell_missing(found) end
    status.begin("starting")
    local folder = project_of(bufnr)
    folders = folder and { [folder] = true } or {}
    client_id = vim.lsp.start(config(found.cmd, parts.settings().server, folder), {
      bufnr = bufnr,
      reuse_client = function() return false end,
    })
    if not client_id then status.begin("failed", "it cannot be started; see :LspLog.") end
  elseif not vim.lsp.buf_is_attached(bufnr, client_id) then
    vim.lsp.buf_attach_client(bufnr, client_id)
  end
end

--- Detach a buffer that wants no suggestions any more.
---@param bufnr integer
function M.detach(bufnr)
  if client_id and vim.lsp.buf_is_attached(bufnr, client_id) then
    parts.on_detach(bufnr)
    vim.lsp.buf_detach_client(bufnr, client_id)
  end
end

--- Attach all buffers that want it.
function M.attach_all()
  for _, bufnr in ipairs(parts.buffers()) do
    M.attach(bufnr)
  end
end

local function stop(client)
  for bufnr in pairs(client.attached_buffers) do
    parts.on_detach(bufnr)
  end
  call("stop")
end

--- Start the server anew; a missing program is looked for again.
function M.restart()
  local client = M.client()
  if client then stop(client) end
  restarts, is_missing_told, client_id = 0, false, nil
  status.begin("starting")
  M.attach_all()
end

--- Say what the server works with.
---@param given specengine.Parts
function M.setup(given)
  parts = given
  vim.api.nvim_create_autocmd("LspProgress", {
    group = vim.api.nvim_create_augroup("specengine.progress", { clear = true }),
    callback = function(event)
      if event.data.client_id == client_id then status.take_progress(event.data.params) end
    end,
  })
end

return M
