// A program over the types that openapi-typescript makes of /api/v1/openapi.json: lists queues, redrives, and
// follows the operation. Called with the address of the door, a token, and a queue with dead letters.
import createClient from "openapi-fetch";
import type { components, paths } from "./api.js";

type Queue = components["schemas"]["QueueRow"];

const [address, token, queue] = process.argv.slice(2) as [string, string, string];
const client = createClient<paths>({ baseUrl: address, headers: { Authorization: `Bearer ${token}` } });
const changes = { "X-SluiceMQ-Action": "program" };

async function dead(): Promise<number> {
  const { data, error } = await client.GET("/api/v1/queues/{queue}", { params: { path: { queue } } });
  if (error) throw new Error(`${error.code}: ${error.message}`);
  return data.dead;
}

async function followed(id: string): Promise<void> {
  for (;;) {
    const { data } = await client.GET("/api/v1/operations/{task_id}", { params: { path: { task_id: id } } });
    if (!data || data.state !== "running") return;
  }
}

async function main(): Promise<void> {
  const { data: page } = await client.GET("/api/v1/queues", { params: { query: { limit: 10, sort: "dead" } } });
  const listed: readonly Queue[] = page?.queues ?? [];
  const before = await dead();
  const { data: begun } = await client.POST("/api/v1/queues/{queue}/dead-letters/redrive", {
    params: { path: { queue }, header: changes },
    body: { all: true },
  });
  if (!begun) throw new Error("not redriven");
  let moved: number | null = null;
  if ("task" in begun) await followed(begun.task);
  else moved = begun.answer.moved;
  const { error } = await client.GET("/api/v1/queues/{queue}", { params: { path: { queue: "nowhere" } } });
  console.log(JSON.stringify({
    first: listed[0]?.name, before, moved, after: await dead(), refused: error?.code ?? "",
  }));
}

void main();
