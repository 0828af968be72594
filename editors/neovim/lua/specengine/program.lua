--- Finds the language server: what is set, the environment of this plugin's checkout, the PATH.

local M = {}

local NAME = "specengine-lsp"

---@class specengine.Program
---@field cmd string[]? nil when none was found
---@field source string where it comes from, or why there is none; a sentence for people

--- Return the folder that this plugin is a part of: the checkout, if it is one.
---@return string
function M.checkout()
  local file = debug.getinfo(1, "S").source:sub(2)
  -- Packages are often links into the checkout.
  local real = vim.uv.fs_realpath(file) or file
  return vim.fs.normalize(vim.fn.fnamemodify(real, ":h:h:h:h:h"))
end

local function is_executable(path) return vim.fn.executable(path) == 1 end

---@param cmd string|string[]
---@return specengine.Program
local function from_setting(cmd)
  local words = type(cmd) == "table" and vim.deepcopy(cmd) or { cmd } ---@type string[]
  words[1] = vim.fn.expand(words[1])
  if is_executable(words[1]) then return { cmd = words, source = "set by cmd" } end
  return { source = ("the setting cmd names %s, which cannot be run."):format(words[1]) }
end

--- Return the language server that the settings mean.
---@param settings specengine.Settings
---@return specengine.Program
function M.find(settings)
  if settings.cmd then return from_setting(settings.cmd) end
  local folder = M.checkout() .. "/.venv"
  for _, path in ipairs({ folder .. "/bin/" .. NAME, folder .. "/Scripts/" .. NAME .. ".exe" }) do
    if is_executable(path) then return { cmd = { path }, source = "of the plugin's checkout" } end
  end
  if is_executable(NAME) then return { cmd = { vim.fn.exepath(NAME) }, source = "on the PATH" } end
  return {
    source = ("there is no %s in %s/bin and none on the PATH. Run `make setup` in the checkout, "
      .. "or set cmd."):format(NAME, folder),
  }
end

return M
