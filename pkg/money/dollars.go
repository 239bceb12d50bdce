package money

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Dollars is a rate: micro-dollars per hour. The zero value is $0/h and ready to use; values compare with ==.
//
// Negative rates exist only as differences (Sub). Parse and UnmarshalJSON read them, so that whatever was written can
// be read back; a field that must not be negative says so in its own validation.
//
// +kubebuilder:validation:Type=number
// +kubebuilder:validation:Maximum=1000000000
type Dollars struct{ micros int64 }

// Parse reads a decimal number of dollars per hour such as "0.5", "12" or "0.123456".
//
// It takes no currency sign, exponent, spaces or thousands separators, needs a digit on both sides of a decimal point,
// and refuses a value finer than a micro-dollar or beyond int64 micro-dollars.
func Parse(s string) (Dollars, error) {
	m, err := parseText(s)
	return Dollars{m}, err
}

// MustParse is Parse for constants in code and tests; it panics where Parse returns an error.
func MustParse(s string) Dollars {
	d, err := Parse(s)
	if err != nil {
		panic(err)
	}
	return d
}

// FromMicros returns the rate of that many micro-dollars per hour: 500000 is $0.50/h.
func FromMicros(micros int64) Dollars { return Dollars{micros} }

// CeilFromFloat converts a price in dollars per hour that a provider answered as a binary float, rounding up to the
// micro-dollar.
//
// Noise of float arithmetic (below one part in 10^13) is not rounded up: 0.41 and 0.40+0.01 are both 0.41. NaN,
// infinities, negative values and values beyond int64 micro-dollars are errors.
func CeilFromFloat(f float64) (Dollars, error) {
	switch {
	case math.IsNaN(f) || math.IsInf(f, 0):
		return Dollars{}, fmt.Errorf("money: price %v is not a number", f)
	case f < 0:
		return Dollars{}, fmt.Errorf("money: price %v is negative", f)
	}
	d, err := scan(strconv.FormatFloat(math.Abs(f), 'e', -1, 64), true)
	if err != nil {
		return Dollars{}, err
	}
	m, err := d.ceilMicros()
	return Dollars{m}, err
}

// Micros is the rate in micro-dollars per hour.
func (d Dollars) Micros() int64 { return d.micros }

// String is the rate in dollars with at least two and at most six decimals and no unit: "0.50", "3.00", "0.123456".
func (d Dollars) String() string { return format(d.micros) }

// MarshalJSON writes the digits of String as an unquoted JSON number.
func (d Dollars) MarshalJSON() ([]byte, error) { return []byte(format(d.micros)), nil }

// UnmarshalJSON reads a JSON number of dollars per hour; null leaves the value as it is.
//
// Exponents are read, because the Kubernetes API server writes numbers back in its own form. More than six decimals
// are refused, but for an excess so small (below a five-hundredth of a micro-dollar) that the API's own rule lets it
// through; that is rounded up, since an object that is stored must stay readable. Strings are refused.
func (d *Dollars) UnmarshalJSON(data []byte) error {
	return unmarshal(data, &d.micros)
}

// Add returns d+o, saturating.
func (d Dollars) Add(o Dollars) Dollars { return Dollars{addSat(d.micros, o.micros)} }

// Sub returns d-o, saturating; the result may be negative.
func (d Dollars) Sub(o Dollars) Dollars { return Dollars{subSat(d.micros, o.micros)} }

// Cmp is -1, 0 or +1 as d is below, equal to or above o.
func (d Dollars) Cmp(o Dollars) int { return cmp(d.micros, o.micros) }

// Less reports d < o.
func (d Dollars) Less(o Dollars) bool { return d.micros < o.micros }

// IsZero reports a rate of exactly $0/h; encoding/json's omitzero uses it.
func (d Dollars) IsZero() bool { return d.micros == 0 }

// MulInt returns d×n, saturating: the rate of n of the same thing.
func (d Dollars) MulInt(n int) Dollars { return Dollars{mulDiv(d.micros, int64(n), 1, ceil)} }

// MulFrac returns d×num/den rounded up to the micro-dollar, saturating: MulFrac(115, 100) is a bid of 1.15 times.
//
// den must be positive; anything else is a programming error and panics.
func (d Dollars) MulFrac(num, den int64) Dollars {
	if den <= 0 {
		panic(errors.New("money: MulFrac needs a positive denominator"))
	}
	return Dollars{mulDiv(d.micros, num, den, ceil)}
}

// For is what the rate comes to over t, rounded half up to the micro-dollar once, saturating. A negative t (a clock
// that was set back) costs nothing.
func (d Dollars) For(t time.Duration) Amount {
	if t <= 0 {
		return Amount{}
	}
	return Amount{mulDiv(d.micros, int64(t), int64(time.Hour), halfUp)}
}

// DeepCopyInto writes d to out.
func (d *Dollars) DeepCopyInto(out *Dollars) { *out = *d }

// DeepCopy returns a new copy, or nil for nil.
func (d *Dollars) DeepCopy() *Dollars {
	if d == nil {
		return nil
	}
	out := *d
	return &out
}

// Min is the smallest of its arguments.
func Min(first Dollars, rest ...Dollars) Dollars {
	for _, d := range rest {
		if d.Less(first) {
			first = d
		}
	}
	return first
}

// Max is the largest of its arguments.
func Max(first Dollars, rest ...Dollars) Dollars {
	for _, d := range rest {
		if first.Less(d) {
			first = d
		}
	}
	return first
}
