"""The multimap of `kvarray.index` as a dict of lists: key -> rows, oldest first."""


class HashIndexReference:
    def __init__(self, num_rows):
        self.num_rows = num_rows
        self.rows_of = {}

    def find(self, keys):
        return [self.rows_of.get(key, [-1])[0] for key in keys]

    def find_after(self, rows):
        found = []
        for row in rows:
            (same,) = [same for same in self.rows_of.values() if row in same]
            found.append((*same, -1)[same.index(row) + 1])
        return found

    def insert(self, keys, rows):
        for key, row in zip(keys, rows, strict=True):
            self.rows_of.setdefault(key, []).append(row)

    def remove(self, rows):
        for row in rows:
            (key,) = [key for key, same in self.rows_of.items() if row in same]
            self.rows_of[key].remove(row)
            if not self.rows_of[key]:
                del self.rows_of[key]

    def clear(self):
        self.rows_of.clear()

    def keys(self):
        key_of = {row: key for key, same in self.rows_of.items() for row in same}
        return [key_of.get(row, 0) for row in range(self.num_rows)]
