package money

// Amount is dollars spent, in micro-dollars. It is a type of its own so that a rate is never added to a bill. The zero
// value is $0; values compare with ==.
//
// +kubebuilder:validation:Type=number
// +kubebuilder:validation:Maximum=1000000000
type Amount struct{ micros int64 }

// ParseAmount reads dollars in the form that Parse takes.
func ParseAmount(s string) (Amount, error) {
	m, err := parseText(s)
	return Amount{m}, err
}

// AmountFromMicros returns that many micro-dollars.
func AmountFromMicros(micros int64) Amount { return Amount{micros} }

// Micros is the amount in micro-dollars.
func (a Amount) Micros() int64 { return a.micros }

// String is the amount in dollars with at least two and at most six decimals and no unit.
func (a Amount) String() string { return format(a.micros) }

// MarshalJSON writes the digits of String as an unquoted JSON number.
func (a Amount) MarshalJSON() ([]byte, error) { return []byte(format(a.micros)), nil }

// UnmarshalJSON reads a JSON number of dollars by the rules of Dollars.UnmarshalJSON.
func (a *Amount) UnmarshalJSON(data []byte) error {
	return unmarshal(data, &a.micros)
}

// Add returns a+o, saturating.
func (a Amount) Add(o Amount) Amount { return Amount{addSat(a.micros, o.micros)} }

// Sub returns a-o, saturating; the result may be negative.
func (a Amount) Sub(o Amount) Amount { return Amount{subSat(a.micros, o.micros)} }

// Cmp is -1, 0 or +1 as a is below, equal to or above o.
func (a Amount) Cmp(o Amount) int { return cmp(a.micros, o.micros) }

// Less reports a < o.
func (a Amount) Less(o Amount) bool { return a.micros < o.micros }

// IsZero reports an amount of exactly $0; encoding/json's omitzero uses it.
func (a Amount) IsZero() bool { return a.micros == 0 }

// DeepCopyInto writes a to out.
func (a *Amount) DeepCopyInto(out *Amount) { *out = *a }

// DeepCopy returns a new copy, or nil for nil.
func (a *Amount) DeepCopy() *Amount {
	if a == nil {
		return nil
	}
	out := *a
	return &out
}
