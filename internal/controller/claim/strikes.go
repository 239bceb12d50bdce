package claim

import "sync"

// Strikes remembers on which machine a workload last failed at which step: the same step on two different machines is
// the workload's fault, not the machines'. It is safe for concurrent use.
type Strikes struct {
	mu   sync.Mutex
	last map[strike]string
}

type strike struct{ workload, step string }

// NewStrikes returns an empty memory.
func NewStrikes() *Strikes { return &Strikes{last: map[strike]string{}} }

// Strike records a failure and reports whether another machine failed the workload at this step before.
func (s *Strikes) Strike(workload, step, machine string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := strike{workload, step}
	before, ok := s.last[k]
	s.last[k] = machine
	return ok && before != machine
}

// Clear forgets a workload that came to serve, and reports whether there was anything to forget.
func (s *Strikes) Clear(workload string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.last)
	for k := range s.last {
		if k.workload == workload {
			delete(s.last, k)
		}
	}
	return len(s.last) < before
}
