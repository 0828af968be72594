--- Keys of insert mode that act on a suggestion, and do what they did before without one.

local M = {}

local before = {} ---@type table<string, table> by key, what maparg said of it
local ours = {} ---@type table<string, string> by key, our description

---@param key string
---@return string
local function raw(key) return vim.api.nvim_replace_termcodes(key, true, true, true) end

--- Do what the key did before us.
---@param key string
function M.fall_back(key) before[key].callback() end

---@param key string
---@return string keys as they are typed
local function what_it_did(key)
  local old = before[key]
  if vim.tbl_isempty(old) then return raw(key) end
  if old.expr == 1 then
    local keys = old.callback and old.callback() or vim.api.nvim_eval(old.rhs)
    return old.replace_keycodes == 1 and raw(keys or "") or keys or ""
  elseif old.callback then
    return raw(("<Cmd>lua require('specengine.keys').fall_back(%q)<CR>"):format(key))
  elseif old.noremap == 0 then
    vim.api.nvim_feedkeys(raw(old.rhs), "mi", false)
    return ""
  end
  return raw(old.rhs)
end

--- Map a key to an action of this plugin.
---@param key string
---@param action string the name of a function of `require("specengine")`
---@param is_wanted fun(): boolean whether the action has anything to do now
local function map(key, action, is_wanted)
  local old = vim.fn.maparg(key, "i", false, true)
  local desc = "SpecEngine: " .. action
  if old.desc ~= desc then before[key] = old.buffer == 1 and {} or old end
  ours[key] = desc
  -- The action runs as a command in its turn, so that keys typed meanwhile come after it; u takes
  -- it back alone.
  local command = raw(("<C-g>u<Cmd>lua require('specengine').%s()<CR><C-g>u"):format(action))
  vim.keymap.set("i", key, function()
    if is_wanted() then return command end
    return what_it_did(key)
  end, { expr = true, replace_keycodes = false, desc = desc })
end

--- Map the keys that are set; those of an earlier call that are not get their meaning back.
---@param keys table<string, string|false>
---@param has_suggestion fun(): boolean
function M.setup(keys, has_suggestion)
  for key, desc in pairs(ours) do
    if vim.fn.maparg(key, "i", false, true).desc == desc then
      vim.keymap.del("i", key)
      if not vim.tbl_isempty(before[key]) then vim.fn.mapset("i", false, before[key]) end
    end
  end
  ours = {}
  local function always() return true end
  for action, key in pairs(keys) do
    if key then map(key, action, action == "request" and always or has_suggestion) end
  end
end

--- Return what somebody has put in the place of our key for an action; nil if it is ours.
---@param key string
---@return string?
function M.taken_by(key)
  local found = vim.fn.maparg(key, "i", false, true)
  if ours[key] and found.desc == ours[key] then return nil end
  return found.desc or found.rhs or (found.callback and "a function") or "nothing"
end

return M
