--- What the server and its engine do, as one value; its words for a status line.

local M = {}

---@alias specengine.ServerState "idle"|"missing"|"starting"|"running"|"failed"

---@class specengine.Engine
---@field state string starting, loading, ready, failed or unavailable
---@field model string
---@field drafter string
---@field detail string one line for people
---@field progress number of loading, 0 to 1

---@class specengine.Status
---@field server specengine.ServerState
---@field reason string why the server is missing or has failed
---@field engine specengine.Engine?
---@field last_ms number? from the last key to its suggestion
---@field notices string[] what the server wanted the user to read, newest last

local MAX_NOTICES = 20
local MAX_LINES = 500
local LOADING_TOKEN = "specengine-loading"

---@type specengine.Status
M.current = { server = "idle", reason = "", notices = {} }

---@type string[] the readable lines of the trace, newest last
M.trace = {}

---@type fun()[] called after each change
M.listeners = {}

local function tell()
  vim.schedule(function() vim.cmd.redrawstatus({ bang = true }) end)
  for _, listener in ipairs(M.listeners) do
    listener()
  end
end

--- Change some fields and tell everybody.
---@param changes table
function M.update(changes)
  for name, value in pairs(changes) do
    M.current[name] = value
  end
  tell()
end

--- The server is about to start anew: what its engine did is past.
---@param server specengine.ServerState
---@param reason string?
function M.begin(server, reason)
  M.current.engine, M.current.last_ms = nil, nil
  M.update({ server = server, reason = reason or "" })
end

--- Take a status that the server sends as a notification.
---@param params table
function M.take_engine(params)
  if type(params) ~= "table" or type(params.state) ~= "string" then return end
  local function text(value) return type(value) == "string" and value or "" end
  M.update({
    engine = {
      state = params.state,
      model = text(params.model),
      drafter = text(params.drafter),
      detail = text(params.detail),
      progress = type(params.progress) == "number" and params.progress or 0,
    },
  })
end

--- Take a line of the server's log: a record of a request, or a change of the engine.
---@param line string
function M.take_line(line)
  if line:match("^#%d+ ") then
    table.insert(M.trace, line)
    if #M.trace > MAX_LINES then table.remove(M.trace, 1) end
    tell()
    return
  end
  local state, model, drafter, detail = line:match("^engine (%a+): (.-), (.-)%. ?(.*)$")
  if state then
    local progress = state == "ready" and 1 or 0
    M.take_engine({
      state = state,
      model = model,
      drafter = drafter,
      detail = detail,
      progress = progress,
    })
  end
end

--- Take a report of progress; only that of loading is ours.
---@param params table
function M.take_progress(params)
  local engine, value = M.current.engine, params.value
  if params.token ~= LOADING_TOKEN or not engine or type(value) ~= "table" then return end
  if engine.state ~= "loading" then return end
  engine.progress = (value.percentage or 100 * engine.progress) / 100
  engine.detail = value.message or engine.detail
  tell()
end

--- Keep what the server wanted the user to read.
---@param text string
function M.take_notice(text)
  table.insert(M.current.notices, text)
  if #M.current.notices > MAX_NOTICES then table.remove(M.current.notices, 1) end
  tell()
end

local function short_model(model) return vim.fs.basename((model:gsub("[/\\]+$", ""))) end

---@param engine specengine.Engine?
---@param last_ms number?
local function engine_text(engine, last_ms)
  if not engine or engine.state == "starting" then return "SpecEngine starts" end
  local name = short_model(engine.model)
  if engine.state == "loading" then
    return ("SpecEngine loads %s %d %%"):format(name, 100 * engine.progress)
  elseif engine.state == "failed" then
    return "SpecEngine: the model cannot be loaded"
  elseif engine.state == "unavailable" then
    return "SpecEngine: no engine"
  end
  if not last_ms then return name end
  if last_ms < 1000 then return ("%s %d ms"):format(name, last_ms) end
  return ("%s %.1f s"):format(name, last_ms / 1000)
end

--- Return the words for a status line; empty where there is nothing to tell.
---@param is_on boolean whether suggestions come by themselves here
---@return string
function M.text(is_on)
  local current = M.current
  if current.server == "idle" then return "" end
  if current.server == "missing" then return "SpecEngine: no program" end
  if current.server == "failed" then return "SpecEngine: server ended" end
  if not is_on then return "SpecEngine off" end
  if current.server == "starting" then return "SpecEngine starts" end
  return engine_text(current.engine, current.last_ms)
end

return M
