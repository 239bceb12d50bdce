package money

import (
	"bytes"
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

const (
	decimals      = 6
	microsPerUnit = 1_000_000

	// maxDigits bounds what a hostile document can make us compute with; a float64 never prints more than 17.
	maxDigits = 64
	// maxShift bounds exponents for the same reason. It leaves every float64 (down to 5e-324) on the right side.
	maxShift = 400

	// floatNoise: one part in this many is what adding a few float64 prices can put beside the decimal they mean.
	floatNoise = 10_000_000_000_000
	// storedNoise: the API's own rule lets a value through that is less than 1/1000 of a micro-dollar off, so twice that
	// is let through here. Being stricter than that rule would let one stored object stop every list of its kind.
	storedNoise = 500
)

var (
	errRange = errors.New("money: number of dollars too large")
	errFine  = errors.New("money: more than six decimals")
)

// decimal is ±coef×10^exp, with coef at most maxDigits long.
type decimal struct {
	neg  bool
	coef *big.Int
	exp  int
}

// scan reads a number in JSON's grammar; an exponent only where allowed.
func scan(s string, exponent bool) (decimal, error) {
	bad := func() (decimal, error) { return decimal{}, fmt.Errorf("money: %.40q is not a number of dollars", s) }
	rest, neg := strings.CutPrefix(s, "-")
	mantissa, exp := rest, 0
	if i := strings.IndexAny(rest, "eE"); i >= 0 && exponent {
		var ok bool
		if mantissa = rest[:i]; len(rest) > i+1 {
			exp, ok = scanExponent(rest[i+1:])
		}
		if !ok {
			return bad()
		}
	}
	whole, frac, point := strings.Cut(mantissa, ".")
	if !digits(whole) || point && !digits(frac) || len(whole) > 1 && whole[0] == '0' {
		return bad()
	}
	if len(whole)+len(frac) > maxDigits {
		return decimal{}, fmt.Errorf("money: a number of dollars with more than %d digits", maxDigits)
	}
	coef, ok := new(big.Int).SetString(whole+frac, 10)
	if !ok {
		return bad()
	}
	return decimal{neg: neg, coef: coef, exp: exp - len(frac)}, nil
}

// scanExponent reads what follows the e, clamped so that arithmetic on it cannot overflow.
func scanExponent(s string) (int, bool) {
	abs := strings.TrimLeft(s, "+-")
	if len(s)-len(abs) > 1 || !digits(abs) {
		return 0, false
	}
	n, err := strconv.Atoi(abs)
	if err != nil || n > 2*maxShift {
		n = 2 * maxShift
	}
	if s[0] == '-' {
		n = -n
	}
	return n, true
}

func digits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// split returns the magnitude in whole micro-dollars, rounded down, and what is left over as rem/den of one.
func (d decimal) split() (whole, rem, den *big.Int, err error) {
	shift := d.exp + decimals
	if d.coef.Sign() == 0 {
		return new(big.Int), new(big.Int), big.NewInt(1), nil
	}
	if shift > maxDigits {
		return nil, nil, nil, errRange
	}
	if shift >= 0 {
		return new(big.Int).Mul(d.coef, pow10(shift)), new(big.Int), big.NewInt(1), nil
	}
	den = pow10(min(-shift, maxShift))
	whole, rem = new(big.Int).QuoRem(d.coef, den, new(big.Int))
	return whole, rem, den, nil
}

// exactMicros refuses any remainder.
func (d decimal) exactMicros() (int64, error) {
	whole, rem, _, err := d.split()
	if err != nil {
		return 0, err
	}
	if rem.Sign() != 0 {
		return 0, errFine
	}
	return d.signed(whole)
}

// ceilMicros rounds towards plus infinity, but to the nearest where the distance is float noise.
func (d decimal) ceilMicros() (int64, error) {
	whole, rem, den, err := d.split()
	if err != nil {
		return 0, err
	}
	if rem.Sign() == 0 || d.within(rem, floatNoise) {
		return d.signed(whole)
	}
	if !d.neg || d.within(new(big.Int).Sub(den, rem), floatNoise) {
		whole.Add(whole, big.NewInt(1))
	}
	return d.signed(whole)
}

// storedMicros is ceilMicros for values that are whole micro-dollars but for one part in storedNoise of one, or for float
// noise where a large value has more of that, and an error else.
func (d decimal) storedMicros() (int64, error) {
	_, rem, den, err := d.split()
	if err != nil {
		return 0, err
	}
	over := new(big.Int).Sub(den, rem)
	noise := func(part *big.Int) bool {
		return d.within(part, floatNoise) || new(big.Int).Mul(part, big.NewInt(storedNoise)).Cmp(den) <= 0
	}
	if !noise(rem) && !noise(over) {
		return 0, errFine
	}
	return d.ceilMicros()
}

// within reports that part (over the denominator of split) is at most one in parts of the whole value.
func (d decimal) within(part *big.Int, parts int64) bool {
	return new(big.Int).Mul(part, big.NewInt(parts)).Cmp(d.coef) <= 0
}

func (d decimal) signed(magnitude *big.Int) (int64, error) {
	if d.neg {
		magnitude = new(big.Int).Neg(magnitude)
	}
	if !magnitude.IsInt64() {
		return 0, errRange
	}
	return magnitude.Int64(), nil
}

func pow10(n int) *big.Int {
	return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil)
}

func parseText(s string) (int64, error) {
	d, err := scan(s, false)
	if err != nil {
		return 0, err
	}
	m, err := d.exactMicros()
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, s)
	}
	return m, nil
}

// unmarshal leaves the value as it is on null and on error.
func unmarshal(data []byte, micros *int64) error {
	data = bytes.TrimSpace(data)
	switch {
	case bytes.Equal(data, []byte("null")):
		return nil
	case len(data) > 0 && data[0] == '"':
		return fmt.Errorf("money: %.40s is a string: write the number of dollars without quotes", data)
	}
	d, err := scan(string(data), true)
	if err != nil {
		return err
	}
	m, err := d.storedMicros()
	if err != nil {
		return fmt.Errorf("%w: %s", err, data)
	}
	*micros = m
	return nil
}

// format writes at least two decimals, and up to six where the value has them.
func format(micros int64) string {
	sign, abs := "", uint64(micros)
	if micros < 0 {
		sign, abs = "-", -abs
	}
	frac := fmt.Sprintf("%06d", abs%microsPerUnit)
	frac = frac[:2] + strings.TrimRight(frac[2:], "0")
	return sign + strconv.FormatUint(abs/microsPerUnit, 10) + "." + frac
}
