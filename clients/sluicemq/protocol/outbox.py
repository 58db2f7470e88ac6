"""The form of a post: a document in an application's MongoDB that brokers turn into a job."""

from __future__ import annotations

from typing import Any, Final

#: The collection of posts, in each database of an application.
OUTBOX: Final = "sluicemq_outbox"
#: Validator of MongoDB for it: what can be no post is refused where it is written.
VALIDATOR: Final[dict[str, Any]] = {
    "$jsonSchema": {
        "bsonType": "object",
        "required": ["_id", "queue", "payload"],
        "properties": {
            "_id": {
                "bsonType": "objectId",
                "description": "ids of one process rise, so its posts keep their order",
            },
            "queue": {"bsonType": "string", "minLength": 1, "maxLength": 64},
            "payload": {"bsonType": ["binData", "string"], "description": "a text is sent as UTF-8"},
            "headers": {
                "bsonType": "object",
                "description": "options of the job, as docs/job-options.md has them",
            },
            "at": {"bsonType": "date"},
        },
    }
}
