"""Small source trees on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

SHOP: Mapping[str, str] = {
    "shop/__init__.py": '"""A small shop."""\n',
    "shop/apps.py": "from django.apps import AppConfig\n\n\nclass ShopConfig(AppConfig):\n    name = 'shop'\n",
    "shop/models.py": (
        '"""What is sold."""\nfrom django.db import models\n\n\n'
        'class Product(models.Model):\n    """A thing for sale."""\n\n\nclass Book(Product):\n    pass\n'
    ),
    "shop/prices.py": (
        "import decimal\nfrom shop.models import Product\n\n\ndef price_of(product):\n    '''The price, in cents.'''\n"
    ),
    "shop/views.py": "from . import prices\n\n\ndef detail(request, pk):\n    return prices.price_of(pk)\n",
    "shop/tasks.py": "from celery import shared_task\n\n\n@shared_task\ndef restock():\n    pass\n",
    "shop/management/__init__.py": "",
    "shop/management/commands/__init__.py": "",
    "shop/management/commands/sell.py": (
        "from django.core.management.base import BaseCommand\n\n\nclass Command(BaseCommand):\n    pass\n"
    ),
    "shop/migrations/__init__.py": "",
    "shop/migrations/0001_initial.py": "class Migration:\n    pass\n",
    "shop/tests/__init__.py": "",
    "shop/tests/test_prices.py": "def test_price():\n    pass\n",
    "manage.py": "from shop import models\n\n\ndef main():\n    pass\n",
}
SHOP_ELEMENTS = 20  # 3 packages, 7 modules, 4 classes, 4 functions, 2 externals


def write_tree(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write `files` below `root`, which it returns."""
    for relative, content in files.items():
        path = root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root
