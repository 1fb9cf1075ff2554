"""Books seats in rows of a theatre."""


class Full(Exception):
    """There are not so many free seats side by side."""


class Row:
    """A row of seats, numbered from 1."""

    def __init__(self, seats):
        if seats < 1:
            raise ValueError("a row has at least one seat")
        self.seats = seats
        self.taken = {}

    def free(self):
        """The numbers of the free seats, in order."""
        return [seat for seat in range(1, self.seats + 1) if seat not in self.taken]

    def book(self, name, count):
        """Book the first `count` free seats side by side; gives their numbers. Raises Full, and books nothing then."""
        if count < 1:
            raise ValueError("at least one seat")
        for first in range(1, self.seats - count + 2):
            wanted = range(first, first + count)
            if all(seat not in self.taken for seat in wanted):
                self.taken.update(dict.fromkeys(wanted, name))
                return list(wanted)
        raise Full(f"no {count} seats side by side")

    def cancel(self, name):
        """Free all seats of a name; gives how many there were."""
        seats = list(self.taken)
        for seat in seats:
            del self.taken[seat]
        return len(seats)
