"""Files that belong to messages: stored under names that the server makes, found by their path in the metadata."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path

from sqlalchemy import select

from models.base import config, db, new_id
from models.errors import InvalidImage
from models.message import Message

IMAGE_FOLDER = "uploads/query_images"
_SIGNATURES = {
    "image/png": (b"\x89PNG\r\n\x1a\n", ".png"),
    "image/jpeg": (b"\xff\xd8\xff", ".jpg"),
    "image/gif": (b"GIF8", ".gif"),
    "image/webp": (b"RIFF", ".webp"),
}


def save_image(encoded: str, declared_type: str | None) -> str:
    """Writes a Base64 image that came with a message; gives its path relative to the data directory."""
    image, kind = _checked(encoded, declared_type)
    path = Path(IMAGE_FOLDER) / (new_id() + _SIGNATURES[kind][1])
    target = config().data_dir / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(image)
    return path.as_posix()


def check_image(encoded: str, declared_type: str | None) -> str:
    """The image as a data URL, checked and not stored."""
    image, kind = _checked(encoded, declared_type)
    return _data_url(image, kind)


def _checked(encoded: str, declared_type: str | None) -> tuple[bytes, str]:
    image = _decode(encoded)
    kind = _kind_of(image)
    if declared_type is not None and declared_type.lower().replace("image/jpg", "image/jpeg") != kind:
        raise InvalidImage(f"The image is {kind}, but img_mime_type says {declared_type[:100]}.")
    return image, kind


def as_data_url(path: str) -> str | None:
    """The image as model servers take it; None where the file has gone."""
    file = _inside(path)
    if file is None or not file.is_file():
        return None
    image = file.read_bytes()
    return _data_url(image, _kind_of(image))


def _data_url(image: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(image).decode()}"


def of_chat(chat_id: str) -> list[str]:
    carriers = select(Message).where(Message.session_id == chat_id, Message.metadata_json.contains("img_path"))
    paths = [message.details.get("img_path") for message in db.session.scalars(carriers)]
    return [path for path in paths if isinstance(path, str)]


def remove(paths: list[str]) -> None:
    for path in paths:
        file = _inside(path)
        if file is not None:
            file.unlink(missing_ok=True)


def _inside(path: str) -> Path | None:
    """Metadata can be written by clients: only a plain name inside the image folder is ever opened or removed."""
    folder = config().data_dir / IMAGE_FOLDER
    file = folder / Path(path).name
    return file if path == f"{IMAGE_FOLDER}/{file.name}" and not file.is_symlink() else None


def _decode(encoded: str) -> bytes:
    encoded = encoded.partition(",")[2] if encoded.startswith("data:") else encoded
    limit = config().max_image_mb * 1_000_000
    if len(encoded) > limit * 4 / 3 + 4:
        raise InvalidImage(f"The image is larger than {config().max_image_mb} MB.")
    try:
        return base64.b64decode("".join(encoded.split()), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidImage("The image is not valid Base64.") from None


def _kind_of(image: bytes) -> str:
    for kind, (signature, _suffix) in _SIGNATURES.items():
        if image.startswith(signature) and (kind != "image/webp" or image[8:12] == b"WEBP"):
            return kind
    raise InvalidImage("This is not a PNG, JPEG, GIF or WebP image.")
