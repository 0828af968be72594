--- `:SpecEngine status|restart|trace|toggle`.

local status = require("specengine.status")

local M = {}

local TRACE_BUFFER = "specengine://trace"

---@return string[]
local function status_lines()
  local specengine = require("specengine")
  local current = status.current
  local text = specengine.status_text()
  local lines = { text ~= "" and text or "SpecEngine" }
  local reason = current.reason ~= "" and ", " .. current.reason or ""
  table.insert(lines, ("server: %s%s"):format(current.server, reason))
  local engine = current.engine
  if engine then
    local what = ("engine: %s, model %s, drafter %s"):format(
      engine.state,
      engine.model,
      engine.drafter
    )
    table.insert(lines, what)
    if engine.detail ~= "" then table.insert(lines, "        " .. engine.detail) end
  end
  table.insert(lines, "client: " .. specengine.client_kind())
  if #status.trace > 0 then
    table.insert(lines, "last request: " .. status.trace[#status.trace])
  end
  for _, notice in ipairs(current.notices) do
    table.insert(lines, "notice: " .. notice)
  end
  return lines
end

---@param bufnr integer
local function fill_trace(bufnr)
  local lines = #status.trace > 0 and status.trace or { "No request yet." }
  local was_at_end = {}
  for _, window in ipairs(vim.fn.win_findbuf(bufnr)) do
    local line = vim.api.nvim_win_get_cursor(window)[1]
    was_at_end[window] = line == vim.api.nvim_buf_line_count(bufnr)
  end
  vim.bo[bufnr].modifiable = true
  vim.api.nvim_buf_set_lines(bufnr, 0, -1, false, lines)
  vim.bo[bufnr].modifiable = false
  for window, is_at_end in pairs(was_at_end) do
    if is_at_end then vim.api.nvim_win_set_cursor(window, { #lines, 0 }) end
  end
end

local function open_trace()
  local bufnr = vim.fn.bufnr("^" .. TRACE_BUFFER .. "$")
  if bufnr == -1 then
    bufnr = vim.api.nvim_create_buf(false, true)
    vim.api.nvim_buf_set_name(bufnr, TRACE_BUFFER)
    local filling = bufnr
    table.insert(status.listeners, function()
      if vim.api.nvim_buf_is_valid(filling) and #vim.fn.win_findbuf(filling) > 0 then
        fill_trace(filling)
      end
    end)
  end
  vim.cmd("botright 10split")
  vim.api.nvim_win_set_buf(0, bufnr)
  vim.wo.wrap = false
  fill_trace(bufnr)
  vim.cmd("normal! G")
end

---@type table<string, fun()>
local COMMANDS = {
  status = function()
    local lines = vim.tbl_map(function(line) return { line .. "\n" } end, status_lines())
    vim.api.nvim_echo(lines, false, {})
  end,
  restart = function() require("specengine").restart() end,
  trace = open_trace,
  toggle = function()
    local is_on = require("specengine").toggle()
    vim.notify("SpecEngine is " .. (is_on and "on." or "off."))
  end,
}

--- Run a subcommand; `status` without one.
---@param name string
function M.run(name)
  require("specengine").ensure_setup()
  local command = COMMANDS[name == "" and "status" or name]
  if command then return command() end
  local known = table.concat(M.complete(""), ", ")
  vim.notify(("SpecEngine: no command %s; known: %s."):format(name, known), vim.log.levels.ERROR)
end

--- Make the command of the command line.
function M.define()
  vim.api.nvim_create_user_command("SpecEngine", function(given) M.run(given.args) end, {
    nargs = "?",
    complete = M.complete,
    desc = "SpecEngine: status, restart, trace, toggle",
  })
end

--- Return the subcommands that begin so.
---@param begun string
---@return string[]
function M.complete(begun)
  local names = vim.tbl_filter(
    function(name) return vim.startswith(name, begun) end,
    vim.tbl_keys(COMMANDS)
  )
  table.sort(names)
  return names
end

return M
