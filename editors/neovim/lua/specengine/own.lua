--- Asks for suggestions and draws them, where Neovim has no inline completion of its own (0.10, 0.11).
--- A request is cancelled by the one that replaces it, and an answer counts only for the very
--- text and cursor that it was asked at.

local Item = require("specengine.item")
local server = require("specengine.server")

local M = {}

local METHOD = "textDocument/inlineCompletion"
local AUTOMATIC, INVOKED = 2, 1
local NAMESPACE = vim.api.nvim_create_namespace("specengine")

---@class specengine.Asked the place of a request
---@field bufnr integer
---@field tick integer
---@field row integer
---@field col integer

---@type fun(bufnr: integer): boolean whether suggestions come by themselves
local is_on
---@type fun(bufnr: integer) called when text has come for the last key
local on_answer

local items = {} ---@type specengine.Item[] of the present place, the first is shown
local index = 1
local asked ---@type specengine.Asked? the last place that was looked at
local pending ---@type integer? the request that is under way

---@return [integer, integer]
local function cursor()
  local place = vim.api.nvim_win_get_cursor(0)
  return { place[1] - 1, place[2] }
end

---@return specengine.Asked
local function here()
  local bufnr, place = vim.api.nvim_get_current_buf(), cursor()
  local tick = vim.api.nvim_buf_get_changedtick(bufnr)
  return { bufnr = bufnr, tick = tick, row = place[1], col = place[2] }
end

--- Return a line for the screen: tabs as wide as the buffer's own at that column.
---@param line string
---@param column integer of the screen
---@return string
local function with_blanks(line, column)
  if not line:find("\t", 1, true) then return line end
  local out = {}
  for text, tab in line:gmatch("([^\t]*)(\t?)") do
    column = column + vim.fn.strdisplaywidth(text, column)
    local width = tab == "" and 0 or vim.fn.strdisplaywidth("\t", column)
    column = column + width
    table.insert(out, text .. (" "):rep(width))
  end
  return table.concat(out)
end

local function erase(bufnr)
  if vim.api.nvim_buf_is_valid(bufnr) then
    vim.api.nvim_buf_clear_namespace(bufnr, NAMESPACE, 0, -1)
  end
end

---@param item specengine.Item
---@param rest string
local function draw(item, rest)
  local bufnr, place = vim.api.nvim_get_current_buf(), cursor()
  erase(bufnr)
  local before = vim.api.nvim_get_current_line():sub(1, place[2])
  local lines = vim.split(rest, "\n", { plain = true })
  local first = with_blanks(lines[1], vim.fn.strdisplaywidth(before))
  if #items > 1 then first = ("%s (%d/%d)"):format(first, index, #items) end
  local below = vim.tbl_map(
    function(line) return { { with_blanks(line, 0), "SpecEngineGhost" } } end,
    vim.list_slice(lines, 2)
  )
  vim.api.nvim_buf_set_extmark(bufnr, NAMESPACE, place[1], place[2], {
    virt_text = { { first, "SpecEngineGhost" } },
    -- What the item brings along is not shown twice.
    virt_text_pos = item.covered ~= "" and "overlay" or "inline",
    virt_lines = #below > 0 and below or nil,
    hl_mode = "replace", -- a bold word before it would make it bold
    undo_restore = false,
  })
end

local function cancel_pending()
  if pending then server.cancel(pending) end
  pending = nil
end

local function forget_items()
  if asked then erase(asked.bufnr) end
  items, index = {}, 1
end

--- Return the suggestion at the cursor and what of it is still to come.
---@return specengine.Item?
---@return string?
function M.current()
  local item = items[index]
  if not item or not asked or asked.bufnr ~= vim.api.nvim_get_current_buf() then return nil end
  local rest = Item.rest(item, asked.bufnr, cursor())
  if not rest then return nil end
  return item, rest
end

--- Show what goes on as typed, and forget the rest.
local function redraw()
  local item, rest = M.current()
  if item and rest and vim.fn.pumvisible() == 0 then
    draw(item, rest)
  else
    forget_items()
  end
end

---@param place specengine.Asked
---@param result table?
local function take(place, result)
  if not vim.startswith(vim.api.nvim_get_mode().mode, "i") then return end
  if not vim.deep_equal(place, here()) or vim.fn.pumvisible() == 1 then return end
  forget_items()
  for _, raw in ipairs(result and (result.items or result) or {}) do
    local item = Item.from_lsp(raw, place.bufnr, { place.row, place.col })
    if item and Item.rest(item, place.bufnr, { place.row, place.col }) then
      table.insert(items, item)
    end
  end
  if #items > 0 then
    redraw()
    on_answer(place.bufnr)
  end
end

---@param kind integer
local function request(kind)
  cancel_pending()
  local client, place = server.client(), here()
  if not client or not client.attached_buffers[place.bufnr] then return end
  local params = {
    textDocument = { uri = vim.uri_from_bufnr(place.bufnr) },
    position = { line = place.row, character = place.col },
    context = { triggerKind = kind },
  }
  local id ---@type integer?
  local function handler(_, result)
    if pending ~= id then return end -- replaced meanwhile
    pending = nil
    if result then take(place, result) end
  end
  local is_sent
  is_sent, id = server.request(METHOD, params, handler, place.bufnr)
  pending = is_sent and id or nil
end

--- The text or the cursor may have changed: show what still fits, and ask again.
local function on_change()
  local place = here()
  if asked and vim.deep_equal(place, asked) then return end
  local moved_on = asked and asked.bufnr ~= place.bufnr
  if moved_on then M.clear() end
  asked = place
  redraw()
  if is_on(place.bufnr) and vim.fn.pumvisible() == 0 then
    request(AUTOMATIC)
  else
    cancel_pending()
  end
end

--- Take the suggestion away, and do not wait for one.
function M.clear()
  cancel_pending()
  forget_items()
end

--- Ask now, whatever is turned off.
function M.request()
  asked = here()
  request(INVOKED)
end

--- Show another of several suggestions.
---@param step integer
function M.select(step)
  if #items == 0 then return end
  index = (index - 1 + step) % #items + 1
  redraw()
end

--- Watch a buffer.
---@param bufnr integer
function M.attach(bufnr)
  local group = vim.api.nvim_create_augroup("specengine.own." .. bufnr, { clear = true })
  local function on(events, callback)
    vim.api.nvim_create_autocmd(events, { group = group, buffer = bufnr, callback = callback })
  end
  on({ "InsertEnter", "TextChangedI", "TextChangedP", "CursorMovedI" }, on_change)
  on("CompleteDone", function() asked = nil end)
  on({ "InsertLeave", "BufLeave" }, function()
    M.clear()
    asked = nil
  end)
end

--- Stop watching a buffer.
---@param bufnr integer
function M.detach(bufnr)
  pcall(vim.api.nvim_del_augroup_by_name, "specengine.own." .. bufnr)
  erase(bufnr)
end

--- Say where suggestions are on, and who wants to know of answers.
---@param parts { is_on: (fun(bufnr: integer): boolean), on_answer: fun(bufnr: integer) }
function M.setup(parts)
  is_on, on_answer = parts.is_on, parts.on_answer
end

--- A switch has been moved; each request asks whether suggestions are on.
function M.refresh() M.clear() end

return M
