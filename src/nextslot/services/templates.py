"""Templates: makes, changes, archives and lists them."""

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Unpack

from nextslot.client.keyword_arguments import TemplateChanges, TemplateOptions, TemplatePutOptions
from nextslot.domain import DEFAULT_OFFICE, Page, Template
from nextslot.domain.template_defaults import types_of
from nextslot.engine.schedules.template_settings import TemplateSettings
from nextslot.engine.submit.idempotency import Once
from nextslot.store.contract import Tx
from nextslot.store.tables import templates

from .arguments import found
from .cursors import DEFAULT_LIMIT, each, read_page
from .unit_of_work import UnitOfWork

# Sorts after every id.
TOP = "~"


class TemplateService:
    def __init__(self, access: UnitOfWork, settings: TemplateSettings) -> None:
        self._access = access
        self._settings = settings

    async def create(self, name: str, job_type: str | None = None, **options: Unpack[TemplateOptions]) -> Template:
        """Creates a template that makes one job of `job_type`, or a group of `jobs`. Fails if the name exists; `put`
        does not."""
        fields = _fields(job_type, {"name": name, **options})
        once: Once[Template] = Once("templates", options.get("office_id"), fields, lambda made: [made.template_id])

        def work(tx: Tx) -> Template:
            return self._allowed(self._settings.create(tx, fields, self._access.clock.now()))

        return await self._access.create(work, once=once)

    async def put(
        self,
        name: str,
        job_type: str | None = None,
        *,
        office_id: str | None = None,
        **options: Unpack[TemplatePutOptions],
    ) -> tuple[Template, bool]:
        """Creates the template with this name, or sets it to these fields. Returns whether it is new. Fields that are
        not given get their defaults."""
        fields = _fields(job_type, options)
        return await self._access.create(lambda tx: self.store(tx, office_id or DEFAULT_OFFICE, name, fields))

    def store(self, tx: Tx, office_id: str, name: str, fields: Mapping[str, object]) -> tuple[Template, bool]:
        """Does what `put` does, in the transaction of a caller that stores more."""
        template, is_new = self._settings.put(tx, office_id, name, fields, self._access.clock.now())
        return self._allowed(template), is_new

    async def change(self, template_id: str, **fields: Unpack[TemplateChanges]) -> Template:
        """Changes fields of a template for future jobs."""
        return await self._access.write(
            lambda tx: self._allowed(self._settings.change(tx, template_id, fields, self._access.clock.now()))
        )

    def _allowed(self, template: Template) -> Template:
        for job_type in types_of(template):
            self._access.refuse_type(template.office_id, job_type)
        return template

    async def archive(self, template_id: str) -> Template:
        """Archives a template. It makes no more jobs, its schedules are disabled, and its name is free again; its jobs
        stay."""
        return await self._access.write(lambda tx: self._settings.archive(tx, template_id, self._access.clock.now()))

    async def get(self, template_id: str) -> Template:
        """Returns a template, even an archived one."""
        return found(await self._access.read(lambda tx: templates.get(tx, template_id)), "template", template_id)

    def list(self, *, office_id: str | None = None) -> AsyncIterator[Template]:
        """Yields templates of one office, or of all, that are not archived, the newest first."""
        return each(partial(self.page, office_id=office_id))

    async def page(
        self, limit: int = DEFAULT_LIMIT, cursor: str | None = None, *, office_id: str | None = None
    ) -> Page[Template]:
        """Returns a page of templates of one office, or of all, that are not archived, the newest first."""
        return await read_page(
            self._access, "templates", TOP, cursor, limit, partial(templates.page, office_id=office_id), "template_id"
        )


def _fields(job_type: str | None, options: Mapping[str, object]) -> dict[str, object]:
    return {**options} if job_type is None else {"job_type": job_type, **options}
