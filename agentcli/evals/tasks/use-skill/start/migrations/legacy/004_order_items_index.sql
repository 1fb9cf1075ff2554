CREATE INDEX IF NOT EXISTS order_items_order ON order_items (order_id);
