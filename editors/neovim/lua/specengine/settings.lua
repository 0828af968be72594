--- What a user can set, with every default. Mistakes are told by name and keep their default.

local M = {}

---@class specengine.Settings
M.defaults = {
  --- The language server: a command or a list of words; nil looks for it, see program.lua.
  cmd = nil, ---@type string|string[]|nil
  --- Settings of the language server, as `{ engine = { model = "qwen2.5-coder-1.5b" } }`.
  server = {}, ---@type table
  --- Who asks and draws: "core" (vim.lsp.inline_completion), "own", or "auto": core where it is.
  client = "auto", ---@type "auto"|"core"|"own"
  --- Whether suggestions come by themselves; `:SpecEngine toggle` changes it.
  enabled = true,
  --- File types without suggestions.
  disabled_filetypes = { "markdown", "text", "log", "gitcommit", "help", "netrw" }, ---@type string[]
  --- Keys of insert mode; false sets none. Without a suggestion a key does what it did before.
  keys = {
    accept = "<Tab>",
    accept_word = "<C-Right>",
    accept_line = "<C-Down>",
    next = "<M-n>",
    previous = "<M-p>",
    dismiss = "<C-]>",
    request = "<M-Bslash>",
  },
}

local CLIENTS = { auto = true, core = true, own = true }

---@param value any
---@return boolean
local function is_list_of_strings(value)
  if type(value) ~= "table" or not vim.islist(value) then return false end
  return vim.iter(value):all(function(item) return type(item) == "string" end)
end

local function is_key(value) return value == false or (type(value) == "string" and value ~= "") end

---@type table<string, fun(value: any): boolean>
local IS_VALID = {
  cmd = function(value)
    return type(value) == "string" and value ~= "" or (is_list_of_strings(value) and #value > 0)
  end,
  server = function(value) return type(value) == "table" end,
  client = function(value) return CLIENTS[value] ~= nil end,
  enabled = function(value) return type(value) == "boolean" end,
  disabled_filetypes = is_list_of_strings,
}

local function unknown(name, known)
  table.sort(known)
  return ("unknown setting %s; known: %s."):format(name, table.concat(known, ", "))
end

local function read_keys(given, settings, problems)
  if given == false then
    for action in pairs(settings.keys) do
      settings.keys[action] = false
    end
    return
  elseif type(given) ~= "table" then
    table.insert(problems, "setting keys must be a table or false; its defaults are used.")
    return
  end
  for action, key in pairs(given) do
    if M.defaults.keys[action] == nil then
      table.insert(problems, unknown("keys." .. tostring(action), vim.tbl_keys(M.defaults.keys)))
    elseif not is_key(key) then
      local shown = vim.inspect(key)
      table.insert(problems, ("setting keys.%s cannot be %s."):format(action, shown))
    else
      settings.keys[action] = key
    end
  end
end

--- Return all settings, and one line for each mistake in what was given.
---@param given table?
---@return specengine.Settings
---@return string[]
function M.read(given)
  local settings = vim.deepcopy(M.defaults)
  local problems = {} ---@type string[]
  for name, value in pairs(given or {}) do
    if name == "keys" then
      read_keys(value, settings, problems)
    elseif not IS_VALID[name] then
      local known = vim.list_extend(vim.tbl_keys(IS_VALID), { "keys" })
      table.insert(problems, unknown(tostring(name), known))
    elseif not IS_VALID[name](value) then
      local shown = vim.inspect(value, { newline = " ", indent = "" })
      table.insert(problems, ("setting %s cannot be %s; its default is used."):format(name, shown))
    else
      settings[name] = value
    end
  end
  return settings, problems
end

return M
