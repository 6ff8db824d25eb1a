package supervisor

// startWindow is how many numbers startedNumbers keeps track of: the highest number and the numbers just below. The
// highest number alone is not enough, because the Start commands of one sandbox may arrive out of order: each exec has
// its own goroutine in the worker.
const startWindow = 1 << 16

// startedNumbers remembers, in constant memory, the numbers of the Start commands that were accepted; see Start.Number
// in package control. It is a bitmap over a window of startWindow numbers that ends at the highest number. IPsec uses
// the same method against replayed packets.
type startedNumbers struct {
	highest uint64
	taken   [startWindow / 64]uint64
}

// take reports whether a number is new, and marks the number as taken. A number below the window counts as taken.
func (s *startedNumbers) take(n uint64) bool {
	switch {
	case n > s.highest:
		if n-s.highest >= startWindow {
			s.taken = [startWindow / 64]uint64{}
		} else {
			for i := s.highest + 1; i <= n; i++ {
				*s.word(i) &^= bit(i)
			}
		}
		s.highest = n
	case s.highest-n >= startWindow, *s.word(n)&bit(n) != 0:
		return false
	}
	*s.word(n) |= bit(n)
	return true
}

func (s *startedNumbers) word(n uint64) *uint64 { return &s.taken[n%startWindow/64] }

func bit(n uint64) uint64 { return 1 << (n % 64) }
