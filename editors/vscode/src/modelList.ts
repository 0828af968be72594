/** Reads what `specengine models list` prints: JSON, or the table of an older engine. */

export interface ListedModel {
  readonly name: string;
  readonly isDefault: boolean;
  readonly memory: string;
  /** Whether it is on this machine already. */
  readonly isHere: boolean;
  readonly licence: string;
}

/** Return the models that the engine runs itself, in its order. */
export function readModelList(printed: string): ListedModel[] {
  return printed.startsWith("[") ? readJson(printed) : readTable(printed);
}

function readJson(printed: string): ListedModel[] {
  const models = JSON.parse(printed) as Record<string, unknown>[];
  return models
    .filter(({ runs }) => runs === true)
    .map(({ name, is_default, memory_gb, size_bytes, licence }) => ({
      name: String(name),
      isDefault: is_default === true,
      memory: typeof memory_gb === "number" ? `${memory_gb.toFixed(1)} GB` : "?",
      isHere: typeof size_bytes === "number",
      licence: typeof licence === "string" ? licence : "?",
    }));
}

function readTable(table: string): ListedModel[] {
  const [head = "", ...rows] = table.split(/\r?\n/);
  const columns = cells(head);
  const models: ListedModel[] = [];
  for (const row of rows) {
    if (row.trim() === "") break;
    const values = cells(row);
    const cell = (column: string) => values[columns.indexOf(column)] ?? "";
    const [name = "", star] = cell("model").split(" ");
    if (cell("runs") !== "yes") continue;
    models.push({
      name,
      isDefault: star === "*",
      memory: cell("memory"),
      isHere: cell("here") !== "-",
      licence: cell("licence"),
    });
  }
  return models;
}

/** Columns stand apart by two blanks or more. */
function cells(row: string): string[] {
  return row.trim().split(/\s{2,}/);
}
