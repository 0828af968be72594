--- For lualine: `sections = { lualine_x = { "specengine" } }`.

local Component = require("lualine.component"):extend()

function Component:update_status() return require("specengine").status_text() end

return Component
