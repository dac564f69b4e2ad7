"""The weak registry: it keeps nothing alive, and may change while it is iterated over."""

from __future__ import annotations

import gc

from wheel_lock.runtime.weak_registry import WeakRegistry


class Item:
    """Anything; all of them are equal, and none can be hashed."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


def test_it_has_what_was_added_once_each_and_in_order() -> None:
    registry: WeakRegistry[Item] = WeakRegistry()
    items = [Item() for _ in range(5)]
    for item in [*items, *items]:
        registry.add(item)
    assert len(registry) == 5
    assert all(found is item for found, item in zip(registry, items, strict=True))


def test_an_object_without_other_references_is_gone() -> None:
    registry: WeakRegistry[Item] = WeakRegistry()
    kept, dropped, cyclic = Item(), Item(), Item()
    cyclic.itself = cyclic  # type: ignore[attr-defined]
    for item in (kept, dropped, cyclic):
        registry.add(item)
    del dropped, cyclic, item
    gc.collect()
    assert len(registry) == 1
    assert [found is kept for found in registry] == [True]


def test_it_may_change_while_it_is_gone_through() -> None:
    registry: WeakRegistry[Item] = WeakRegistry()
    items = [Item() for _ in range(10)]
    for item in items:
        registry.add(item)
    del item
    seen = 0
    for found in registry:
        seen += 1
        if found is items[0]:
            del found, items[5:]
            items += [Item() for _ in range(3)]
            for new in items[-3:]:
                registry.add(new)
    assert seen == 5  # the new ones come next time, and the dropped ones never
    assert len(list(registry)) == 8


def test_the_place_of_one_that_is_gone_may_be_taken_by_another() -> None:
    registry: WeakRegistry[Item] = WeakRegistry()
    for _ in range(1000):
        item = Item()  # very likely at the address of the last one
        registry.add(item)
        assert len(registry) <= 2
        assert any(found is item for found in registry)
