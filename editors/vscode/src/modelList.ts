/** Reads the table that `specengine models list` prints. */

export interface ListedModel {
  readonly name: string;
  readonly isDefault: boolean;
  readonly memory: string;
  /** Whether it is on this machine already. */
  readonly isHere: boolean;
  readonly licence: string;
}

/** Return the models that the engine runs itself, in the order of the table. */
export function readModelList(table: string): ListedModel[] {
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
