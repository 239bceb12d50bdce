package market

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// Nano is money, or money per hour, in whole nano-dollars. In JSON it is the decimal number of dollars.
type Nano int64

// Nano1 is one dollar.
const Nano1 Nano = 1_000_000_000

// USD is d dollars, rounded to the nearest nano-dollar.
func USD(d float64) Nano {
	if d < 0 {
		return -USD(-d)
	}
	return Nano(d*float64(Nano1) + 0.5)
}

// Dollars is n as the nearest float, which for what a provider prints is the number that USD was given.
func (n Nano) Dollars() float64 { return float64(n) / float64(Nano1) }

// String is the decimal number of dollars without trailing zeros.
func (n Nano) String() string {
	sign := ""
	if n < 0 {
		sign, n = "-", -n
	}
	s := fmt.Sprintf("%s%d.%09d", sign, int64(n/Nano1), int64(n%Nano1))
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// MarshalJSON writes the decimal number of dollars.
func (n Nano) MarshalJSON() ([]byte, error) { return []byte(n.String()), nil }

// UnmarshalJSON reads a number of dollars, in decimal or exponent form.
func (n *Nano) UnmarshalJSON(b []byte) error {
	d, err := strconv.ParseFloat(string(b), 64)
	if err != nil {
		return fmt.Errorf("dollars: %w", err)
	}
	*n = USD(d)
	return nil
}

// cost is what rate per hour comes to over d, rounded up to the next nano-dollar, in 128 bits on the way because an
// eight-GPU machine over a month does not fit into 64.
func cost(rate Nano, d time.Duration) Nano {
	if rate <= 0 || d <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(rate), uint64(d))
	lo, carry := bits.Add64(lo, uint64(time.Hour)-1, 0)
	q, _ := bits.Div64(hi+carry, lo, uint64(time.Hour))
	return Nano(q)
}

// share is n × num / den, rounded to the nearest nano-dollar.
func share(n Nano, num, den int64) Nano {
	return Nano((int64(n)*num + den/2) / den)
}
