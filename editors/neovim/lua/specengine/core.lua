--- Lets Neovim's own inline completion (0.12 and newer) ask and draw, and guards what it shows.
--- Answers pass through here on their way: Neovim shows one that has come too late as if it
--- belonged to the present cursor, and keeps one that the last key has disproved.

local Item = require("specengine.item")
local server = require("specengine.server")

local M = {}

local METHOD = "textDocument/inlineCompletion"
local INVOKED = 1

---@class specengine.Shown
---@field items specengine.Item[]
---@field index integer
---@field hide fun() tell Neovim that there is nothing

---@type table<integer, specengine.Shown?> by buffer
local shown = {}
---@type table? the place where the user wants none
local dismissed

---@type table<integer, lsp.Handler?> Neovim's own handler of the last answer, by buffer
local handlers = {}
---@type fun(bufnr: integer): boolean
local is_on
---@type fun(bufnr: integer)
local on_answer

---@return [integer, integer]
local function cursor()
  local place = vim.api.nvim_win_get_cursor(0)
  return { place[1] - 1, place[2] }
end

---@param bufnr integer
---@return boolean
local function is_enabled(bufnr) return vim.lsp.inline_completion.is_enabled({ bufnr = bufnr }) end

---@param bufnr integer
local function hide(bufnr)
  local one = shown[bufnr]
  shown[bufnr] = nil
  if one and is_enabled(bufnr) then one.hide() end
end

---@return table
local function here()
  local bufnr = vim.api.nvim_get_current_buf()
  return { bufnr, vim.api.nvim_buf_get_changedtick(bufnr), cursor() }
end

--- Return the suggestion at the cursor and what of it is still to come.
---@return specengine.Item?
---@return string?
function M.current()
  local bufnr = vim.api.nvim_get_current_buf()
  local one = shown[bufnr]
  local item = one and one.items[one.index]
  local rest = item and Item.rest(item, bufnr, cursor())
  if not rest then return nil end
  return item, rest
end

---@param result table?
---@param bufnr integer
---@param position lsp.Position
---@return table[] raw the items that fit the buffer as it is now
---@return specengine.Item[]
local function fitting(result, bufnr, position)
  local raw_items, items = {}, {}
  local is_here = vim.api.nvim_get_current_buf() == bufnr
    and vim.startswith(vim.api.nvim_get_mode().mode, "i")
  for _, raw in ipairs(is_here and result and (result.items or result) or {}) do
    local item = Item.from_lsp(raw, bufnr, { position.line, position.character })
    if item and Item.rest(item, bufnr, cursor()) then
      -- Lines with the buffer's own ends only.
      table.insert(raw_items, vim.tbl_extend("force", raw, { insertText = item.text }))
      table.insert(items, item)
    end
  end
  return raw_items, items
end

---@param params table
---@param handler lsp.Handler
---@return lsp.Handler
local function guarded(params, handler)
  local bufnr = vim.uri_to_bufnr(params.textDocument.uri)
  handlers[bufnr] = handler
  return function(err, result, ctx)
    if err or not result then return end -- replaced or cancelled: what is shown still counts
    if not is_enabled(bufnr) or vim.deep_equal(dismissed, here()) then return end
    local raw_items, items = fitting(result, bufnr, params.position)
    local function forget() handler(nil, { items = {} }, ctx) end
    shown[bufnr] = #items > 0 and { items = items, index = 1, hide = forget } or nil
    handler(nil, { items = raw_items }, ctx)
    -- Neovim says how many there are only when one is selected.
    if #items > 1 then vim.lsp.inline_completion.select({ bufnr = bufnr, count = 0 }) end
    if #items > 0 then on_answer(bufnr) end
  end
end

--- Let all answers of a client pass through here.
---@param client vim.lsp.Client
local function guard(client)
  local request = client.request
  client.request = function(self, method, params, handler, bufnr)
    if method == METHOD and handler then handler = guarded(params, handler) end
    return request(self, method, params, handler, bufnr)
  end
end

--- Take the suggestion away.
function M.clear()
  dismissed = here()
  hide(vim.api.nvim_get_current_buf())
end

--- Ask now; Neovim has no call for it, so its handler gets an answer that it has not asked for.
function M.request()
  dismissed = nil
  local bufnr, place = vim.api.nvim_get_current_buf(), cursor()
  local client, handler = server.client(), handlers[bufnr]
  if not client or not handler or not is_enabled(bufnr) then return end
  local params = {
    textDocument = { uri = vim.uri_from_bufnr(bufnr) },
    position = { line = place[1], character = place[2] },
    context = { triggerKind = INVOKED },
  }
  client:request(METHOD, params, handler, bufnr)
end

--- Show another of several suggestions.
---@param step integer
function M.select(step)
  local one = shown[vim.api.nvim_get_current_buf()]
  if not one then return end
  one.index = (one.index - 1 + step) % #one.items + 1
  vim.lsp.inline_completion.select({ count = step })
end

--- Watch a buffer.
---@param bufnr integer
function M.attach(bufnr)
  local group = vim.api.nvim_create_augroup("specengine.core." .. bufnr, { clear = true })
  local function on(events, callback)
    vim.api.nvim_create_autocmd(events, { group = group, buffer = bufnr, callback = callback })
  end
  on({ "TextChangedI", "TextChangedP", "CursorMovedI" }, function()
    if not M.current() then hide(bufnr) end
  end)
  on({ "InsertLeave", "BufLeave" }, function() hide(bufnr) end)
  vim.lsp.inline_completion.enable(is_on(bufnr), { bufnr = bufnr })
end

--- Stop watching a buffer.
---@param bufnr integer
function M.detach(bufnr)
  pcall(vim.api.nvim_del_augroup_by_name, "specengine.core." .. bufnr)
  shown[bufnr], handlers[bufnr] = nil, nil
end

--- Say where suggestions are on, and who wants to know of answers.
---@param parts { is_on: (fun(bufnr: integer): boolean), on_answer: fun(bufnr: integer) }
function M.setup(parts)
  is_on, on_answer = parts.is_on, parts.on_answer
end

--- A client has started.
---@param client vim.lsp.Client
function M.begin(client) guard(client) end

--- A switch has been moved: tell Neovim for all buffers.
function M.refresh()
  local client = server.client()
  for bufnr in pairs(client and client.attached_buffers or {}) do
    if not is_on(bufnr) then hide(bufnr) end
    vim.lsp.inline_completion.enable(is_on(bufnr), { bufnr = bufnr })
  end
end

return M
