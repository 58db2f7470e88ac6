"""Reports that a web application orders, and whose progress its pages show: README.md says how to run it.

``uvicorn reports:web`` serves the pages, and ``sluicemq work reports:tasks`` makes the reports.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, StreamingResponse

from sluicemq import App, DeadError, Job, NotFoundError, Reject
from sluicemq.aio import Client

tasks = App()
broker = Client()  # connects in the lifespan


@tasks.task(queue="reports", retries=3, timeout="5m", reply="result", bind=True)
async def report(job: Job, title: str, pages: int) -> str:
    """Make a report, page by page."""
    if pages < 1:
        raise Reject("a report has at least one page")
    for page in range(pages):
        await asyncio.sleep(0.1)  # the work
        job.progress(page + 1, pages)
    return f"{title}: {pages} pages"


@asynccontextmanager
async def lifespan(_web: FastAPI) -> AsyncIterator[None]:
    """Connect while the application serves."""
    async with broker:
        yield
    await asyncio.to_thread(tasks.close)


web = FastAPI(lifespan=lifespan)


@web.post("/reports", status_code=202)
async def order(title: str, pages: int = 20) -> dict[str, str]:
    """Order a report: it is stored durably when this returns."""
    receipt = await report.apush(title, pages)
    return {"id": receipt.id, "page": f"/reports/{receipt.id}"}


@web.get("/reports/{id}/events")
async def events(id: str) -> StreamingResponse:  # noqa: A002 - the word that jobs use everywhere
    """Send what happens to a report as server-sent events, until it has ended."""
    return StreamingResponse(_events(id), media_type="text/event-stream")


async def _events(job_id: str) -> AsyncIterator[str]:
    while True:
        with suppress(NotFoundError):  # it has ended
            row = await broker.jobs.get("reports", job_id)
            done = row.progress.done if row.progress else 0
            yield _event("progress", {"state": row.state, "pages": done})
        try:
            result = await broker.jobs.result("reports", job_id, wait=1)
        except TimeoutError:
            continue
        except (DeadError, NotFoundError) as error:
            yield _event("failed", str(error))
        else:
            yield _event("done", json.loads(result))
        return


def _event(name: str, data: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


@web.get("/reports/{id}", response_class=HTMLResponse)
async def page(id: str) -> str:  # noqa: A002, ARG001 - the script of the page reads it
    """Show a report as it is made."""
    return PAGE


PAGE = """<!doctype html>
<meta charset="utf-8">
<title>Report</title>
<p id="status">…</p>
<script>
  const status = document.getElementById("status");
  const source = new EventSource(location.pathname + "/events");
  source.addEventListener("progress", (event) => {
    const { state, pages } = JSON.parse(event.data);
    status.textContent = `${state}, ${pages} pages are done`;
  });
  for (const name of ["done", "failed"]) {
    source.addEventListener(name, (event) => {
      status.textContent = JSON.parse(event.data);
      source.close();
    });
  }
</script>
"""
