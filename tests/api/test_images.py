"""An image sent with a message: a file under a name of ours, a path in the metadata, never Base64 in the database."""

from __future__ import annotations

import base64

import pytest

from tests.api.conftest import IMAGES, Talker, encoded
from tests.api.talk import SESSIONS, execute, refused, request_id

PNG = IMAGES["image/png"]
SUFFIXES = {"image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp"}


def files(client):
    folder = client.app.config["HOLDFAST"].data_dir / "uploads"
    return [file for file in folder.rglob("*") if file.is_file()]


def send(client, chat, query="!say nice", image=PNG, **more):
    return client.ask(chat, query, multimodal_content={"img_base64": encoded(image), **more})


def shown(prompt_entry):
    """The image in what the model was sent, as kind and bytes."""
    text, image = prompt_entry["content"]
    assert text["type"] == "text"
    kind, _, data = image["image_url"]["url"].removeprefix("data:").partition(";base64,")
    return kind, base64.b64decode(data)


def test_an_image_is_stored_as_a_file_and_sent_to_the_model(talker, image_kind):
    chat, image = talker.new_chat(), IMAGES[image_kind]
    question = send(talker, chat, image=image, img_mime_type=image_kind).json["user_message"]
    path = question["metadata"]["img_path"]
    assert path.startswith("uploads/query_images/")
    assert path.endswith(SUFFIXES[image_kind])
    assert (talker.app.config["HOLDFAST"].data_dir / path).read_bytes() == image
    assert talker.messages(chat)[0]["metadata"]["img_path"] == path
    assert shown(talker.prompts[-1][-1]) == (image_kind, image)


def test_no_base64_in_the_database(talker):
    chat = talker.new_chat()
    send(talker, chat, image=PNG + b"PIXELS" * 100)
    needle = encoded(b"PIXELS" * 10)[4:-4]
    for table in ("chat_messages", "chat_turns", "chat_sessions"):
        for row in execute(talker.app, f"SELECT * FROM {table}"):
            assert needle not in str(row)


def test_an_image_stays_in_the_history(talker):
    chat = talker.new_chat()
    send(talker, chat)
    talker.talk(chat, "!say and now?")
    assert shown(talker.prompts[-1][1]) == ("image/png", PNG)
    assert talker.prompts[-1][-1]["content"] == "!say and now?"


def test_an_image_whose_file_has_gone_is_left_out(talker):
    chat = talker.new_chat()
    send(talker, chat)
    files(talker)[0].unlink()
    talker.talk(chat, "!say and now?")
    assert talker.prompts[-1][1]["content"] == "!say nice"


def test_names_are_made_by_the_server(talker):
    chat = talker.new_chat()
    for _ in range(2):
        send(talker, chat)
    names = {file.name for file in files(talker)}
    assert len(names) == 2
    assert not any(chat in name for name in names)


@pytest.mark.parametrize(
    "spelling",
    [
        encoded(PNG),
        f"data:image/png;base64,{encoded(PNG)}",
        base64.encodebytes(PNG).decode(),
    ],
    ids=["plain", "a data URL", "with line breaks"],
)
def test_how_an_image_may_be_written(talker, spelling):
    response = talker.ask(talker.new_chat(), "!say nice", multimodal_content={"img_base64": spelling})
    assert response.status_code == 200
    assert files(talker)[0].read_bytes() == PNG


@pytest.mark.parametrize(
    ("kind", "declared"),
    [("image/png", "IMAGE/PNG"), ("image/jpeg", "image/jpg"), ("image/jpeg", "image/jpeg"), ("image/png", None)],
)
def test_how_its_type_may_be_said(talker, kind, declared):
    assert send(talker, talker.new_chat(), image=IMAGES[kind], img_mime_type=declared).status_code == 200


@pytest.mark.parametrize("content", [None, {}, {"img_base64": None}, {"img_mime_type": "image/png"}])
def test_no_image_is_no_image(talker, content):
    chat = talker.new_chat()
    response = talker.ask(chat, "!say fine", multimodal_content=content)
    assert response.json["status"] == "completed"
    assert "img_path" not in response.json["user_message"]["metadata"]
    assert files(talker) == []


# What cannot be


@pytest.mark.parametrize(
    "content",
    [
        {"img_base64": "%%%"},
        {"img_base64": "a"},
        {"img_base64": encoded(PNG)[:-1]},
        {"img_base64": encoded(PNG)[:8] + "!*" + encoded(PNG)[8:]},
        {"img_base64": encoded(PNG).replace("A", "Ä")},
        {"img_base64": "data:image/png;base64"},
        {"img_base64": "data:,"},
        {"img_base64": encoded(b"hello")},
        {"img_base64": encoded(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), "img_mime_type": "image/svg+xml"},
        {"img_base64": encoded(b"<!doctype html><script>")},
        {"img_base64": encoded(b"%PDF-1.7")},
        {"img_base64": encoded(b"RIFF\0\0\0\0WAVE")},
        {"img_base64": encoded(b"\0" + PNG)},
        {"img_base64": encoded(PNG), "img_mime_type": "image/jpeg"},
        {"img_base64": encoded(PNG), "img_mime_type": ""},
        {"img_base64": encoded(PNG), "img_mime_type": "../../etc/passwd"},
        {"img_base64": "/etc/passwd"},
        {"img_base64": "http://127.0.0.1/x.png"},
    ],
)
@pytest.mark.parametrize("where", ["turn", "turn:stream"])
def test_images_that_cannot_be(shared, content, where):
    chat = shared.new_chat()
    body = {"request_id": request_id(), "query": "x", "multimodal_content": content}
    refused(shared.post(f"{SESSIONS}/{chat}/{where}", body), 400, "MULTIMODAL_INVALID")
    assert shared.messages(chat) == []
    assert files(shared) == []
    del body["multimodal_content"]
    assert shared.post(f"{SESSIONS}/{chat}/turn", body).json["status"] == "completed", "the id was not used up"


def test_the_largest_image(make_app):
    client = Talker(make_app(max_image_mb=1, max_body_mb=3).test_client())
    chat = client.new_chat()
    assert send(client, chat, image=PNG + b"\0" * (1_000_000 - len(PNG))).status_code == 200
    refused(send(client, chat, image=PNG + b"\0" * 1_000_100), 400, "MULTIMODAL_INVALID")
    assert len(files(client)) == 1


# What is left of it


def test_a_replay_writes_no_second_file(talker):
    chat = talker.new_chat()
    body = {"request_id": request_id(), "query": "!say once", "multimodal_content": {"img_base64": encoded(PNG)}}
    first = talker.post(f"{SESSIONS}/{chat}/turn", body).json
    assert talker.post(f"{SESSIONS}/{chat}/turn", body).json == first
    assert len(files(talker)) == 1


def test_a_turn_that_does_not_begin_leaves_no_file(talker):
    chat, other = talker.new_chat(), talker.new_chat()
    used = talker.ask(other, "!say x").json["turn_id"]
    image = {"multimodal_content": {"img_base64": encoded(PNG)}}
    refused(talker.ask(chat, "x", request_id=used, **image), 409, "IDEMPOTENCY_CONFLICT")
    refused(talker.ask(request_id(), "x", **image), 404, "SESSION_NOT_FOUND")
    talker.stream(chat, "!hang-after 1").next("delta")
    refused(talker.ask(chat, "x", **image), 409, "TURN_IN_PROGRESS")
    assert files(talker) == []


def test_a_failed_turn_keeps_its_image(talker):
    chat = talker.new_chat()
    question = send(talker, chat, "!500 no").json["user_message"]
    assert (talker.app.config["HOLDFAST"].data_dir / question["metadata"]["img_path"]).read_bytes() == PNG


def test_a_retry_shows_the_image_again(talker):
    chat = talker.new_chat()
    answer = send(talker, chat).json["assistant_message"]
    talker.retry(chat, answer["id"])
    assert shown(talker.prompts[-1][-1]) == ("image/png", PNG)


def test_files_go_with_their_chat_and_not_before(talker):
    chat, other = talker.new_chat(), talker.new_chat()
    send(talker, chat)
    kept = talker.app.config["HOLDFAST"].data_dir / send(talker, other).json["user_message"]["metadata"]["img_path"]
    talker.delete(f"{SESSIONS}/{chat}")
    assert len(files(talker)) == 2
    talker.delete(f"{SESSIONS}/{chat}", hard="true")
    assert files(talker) == [kept]


@pytest.mark.parametrize("path", ["../../../outside.png", "/etc/hostname", "uploads/query_images/../../chat.db", ""])
def test_a_path_that_another_program_wrote_leads_nowhere(talker, path, tmp_path):
    """Neither is such a file read into a prompt, nor removed with its chat."""
    outside = tmp_path / "outside.png"
    outside.write_bytes(PNG)
    chat = talker.new_chat()
    send(talker, chat)
    execute(
        talker.app, "UPDATE chat_messages SET metadata_json = json_set('{}', '$.img_path', ?) WHERE role = 'user'", path
    )
    talker.talk(chat, "!say and now?")
    assert talker.prompts[-1][1]["content"] == "!say nice"
    assert talker.delete(f"{SESSIONS}/{chat}", hard="true").status_code == 200
    assert outside.exists()
    assert talker.get(SESSIONS).status_code == 200
