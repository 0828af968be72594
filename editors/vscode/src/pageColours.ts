/** Gives a page that asks the system for its colours those of the editor. */

export function inColours(page: string, isDark: boolean): string {
  return page
    .replace("color-scheme: light dark", `color-scheme: ${isDark ? "dark" : "light"}`)
    .replace("(prefers-color-scheme: dark)", isDark ? "all" : "not all");
}
