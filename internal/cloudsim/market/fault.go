package market

import "time"

// Fault is something that goes wrong between a client and the provider's API.
type Fault string

// Faults. Those marked "performed" take effect though the client cannot know.
const (
	NoFault Fault = ""
	// ServerError: a 5xx, nothing done.
	ServerError Fault = "server-error"
	// ErrorAfter: performed, then a 5xx.
	ErrorAfter Fault = "error-after"
	// Timeout: no answer for a long time, nothing done.
	Timeout Fault = "timeout"
	// LostAnswer: performed, then the connection is cut.
	LostAnswer Fault = "lost-answer"
	// Truncated: performed, and the answer ends in its middle.
	Truncated Fault = "truncated"
	// Slow: performed, and the answer comes late.
	Slow Fault = "slow"
	// Late: nothing for a while, then performed, whether or not the client still waits.
	Late Fault = "late"
	// TooMany: a 429, nothing done.
	TooMany Fault = "too-many"
)

// AllFaults lists every fault.
func AllFaults() []Fault {
	return []Fault{ServerError, ErrorAfter, Timeout, LostAnswer, Truncated, Slow, TooMany, Late}
}

// Op names an API operation across providers, for faults.
type Op string

// Operations. A façade may use further words of its own.
const (
	OpSearch  Op = "search"
	OpCreate  Op = "create"
	OpGet     Op = "get"
	OpList    Op = "list"
	OpDestroy Op = "destroy"
	OpUpdate  Op = "update"
	OpLogs    Op = "logs"
	OpAccount Op = "account"
	// OpAny stands for every operation.
	OpAny Op = "*"
)

// FaultRates is how often requests go wrong by themselves.
type FaultRates struct {
	// Share is the part of requests that meets each fault.
	Share map[Fault]float64
	// Hold is how long a Timeout keeps the client waiting (30 s when zero), Delay how late a Slow or Late one is (3 s).
	Hold, Delay time.Duration
}

type faultState struct {
	asked    map[Op][]Fault
	ordinals map[Op]int64
}

func newFaultState() faultState {
	return faultState{asked: map[Op][]Fault{}, ordinals: map[Op]int64{}}
}

// FailNext makes the next request of an operation meet a fault; several are met in order.
func (m *Market) FailNext(op Op, f Fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults.asked[op] = append(m.faults.asked[op], f)
}

// LoseNextAnswer performs the next request of an operation and cuts the connection.
func (m *Market) LoseNextAnswer(op Op) { m.FailNext(op, LostAnswer) }

// SetFaultRates replaces how often requests go wrong by themselves.
func (m *Market) SetFaultRates(r FaultRates) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cfg.Faults = r
	m.cfg.complete()
}

// ClearFaults forgets faults that were asked for and have not been met.
func (m *Market) ClearFaults() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults.asked = map[Op][]Fault{}
}

// NextFault decides what the next request of an operation meets: what was asked for, else what its ordinal brings.
func (m *Market) NextFault(op Op) Fault {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.faults.ordinals[op]
	m.faults.ordinals[op]++
	for _, o := range []Op{op, OpAny} {
		if q := m.faults.asked[o]; len(q) > 0 {
			m.faults.asked[o] = q[1:]
			return q[0]
		}
	}
	x := m.chance.at("fault", string(op), n)
	for _, f := range AllFaults() {
		if x -= m.cfg.Faults.Share[f]; x < 0 {
			return f
		}
	}
	return NoFault
}
