--- One suggestion against the text of its buffer: what of it is not typed yet, and its parts.
--- All columns are bytes, from 0; the text has LF only.

local M = {}

---@class specengine.Item
---@field row integer the line of the cursor
---@field start_col integer where the item's range begins
---@field text string what stands in the range afterwards
---@field covered string text behind the cursor that the item brings along, as a closing bracket
---@field raw table the item as the server sent it

--- Return an item as the server sent it, for the cursor it was asked at; nil if it is not usable.
---@param raw table the LSP item
---@param bufnr integer
---@param cursor [integer, integer] row and column
---@return specengine.Item?
function M.from_lsp(raw, bufnr, cursor)
  local text = raw.insertText
  if type(text) ~= "string" or text == "" then return nil end
  -- Lines of the buffer have no line ends; those of a file with CR LF come back with the text.
  if vim.bo[bufnr].fileformat ~= "unix" then text = text:gsub("\r\n?", "\n") end
  local row, col = cursor[1], cursor[2]
  local range = raw.range
  if not range then return { row = row, start_col = col, text = text, covered = "", raw = raw } end
  local first, last = range.start, range["end"]
  if first.line ~= row or last.line ~= row then return nil end
  if first.character > col or last.character < col then return nil end
  local line = vim.api.nvim_buf_get_lines(bufnr, row, row + 1, false)[1] or ""
  local covered = line:sub(col + 1, last.character)
  return { row = row, start_col = first.character, text = text, covered = covered, raw = raw }
end

--- Return what is still to come at a cursor; nil when the buffer says something else.
---@param item specengine.Item
---@param bufnr integer
---@param cursor [integer, integer]
---@return string?
function M.rest(item, bufnr, cursor)
  local row, col = cursor[1], cursor[2]
  if row ~= item.row or col < item.start_col then return nil end
  local line = vim.api.nvim_buf_get_lines(bufnr, row, row + 1, false)[1] or ""
  local typed = line:sub(item.start_col + 1, col)
  if not vim.startswith(item.text, typed) then return nil end
  if not vim.startswith(line:sub(col + 1), item.covered) then return nil end
  local rest = item.text:sub(#typed + 1)
  return rest ~= "" and rest ~= item.covered and rest or nil
end

--- Return the beginning of a text up to the end of its first word, with the blanks before it.
---@param rest string
---@return string
function M.first_word(rest)
  local blanks = rest:match("^%s*")
  local behind = rest:sub(#blanks + 1)
  -- A word of any alphabet, else a run of signs; never half a character.
  local word = vim.fn.matchstr(behind, [=[^\%(\k\+\|[^[:keyword:][:space:]]\+\)]=])
  return word ~= "" and blanks .. word or rest
end

--- Return the beginning of a text up to the end of its first line that is not empty.
---@param rest string
---@return string
function M.first_line(rest) return rest:match("^\n*[^\n]*") end

--- Put a beginning of the rest at the cursor, and the cursor behind it.
---@param item specengine.Item
---@param part string
---@param rest string what `rest` returned
function M.insert(item, part, rest)
  local row, col = unpack(vim.api.nvim_win_get_cursor(0))
  row = row - 1
  -- Only the whole text brings along what stands behind the cursor.
  local end_col = part == rest and col + #item.covered or col
  local lines = vim.split(part, "\n", { plain = true })
  vim.api.nvim_buf_set_text(0, row, col, row, end_col, lines)
  local last_col = (#lines == 1 and col or 0) + #lines[#lines]
  vim.api.nvim_win_set_cursor(0, { row + #lines, last_col })
end

return M
