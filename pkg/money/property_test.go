package money

import (
	"encoding/json"
	"math"
	"math/big"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// anyRate draws over the whole of int64; sane over what a GPU has ever cost.
var (
	anyRate = rapid.Map(rapid.Int64(), FromMicros)
	sane    = rapid.Map(rapid.Int64Range(0, 1_000_000_000), FromMicros)
)

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := anyRate.Draw(t, "rate")
		if back, err := Parse(d.String()); err != nil || back != d {
			t.Fatalf("Parse(%s) = %s, %v", d, back, err)
		}
		data, err := json.Marshal(d)
		if err != nil || string(data) != d.String() {
			t.Fatalf("%s marshals as %s, %v", d, data, err)
		}
		var back Dollars
		if err := json.Unmarshal(data, &back); err != nil || back != d {
			t.Fatalf("%s reads back as %s, %v", data, back, err)
		}
		a := AmountFromMicros(d.Micros())
		if back, err := ParseAmount(a.String()); err != nil || back != a {
			t.Fatalf("ParseAmount(%s) = %s, %v", a, back, err)
		}
	})
}

// The API server holds numbers as float64 and writes them in Go's shortest form, with an exponent or without.
func TestSurvivesFloat64(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := sane.Draw(t, "rate")
		f, err := strconv.ParseFloat(d.String(), 64)
		if err != nil {
			t.Fatal(err)
		}
		form := rapid.SampledFrom([]byte{'e', 'f', 'g'}).Draw(t, "form")
		precision := rapid.SampledFrom([]int{-1, 17}).Draw(t, "precision")
		var back Dollars
		if err := back.UnmarshalJSON(strconv.AppendFloat(nil, f, form, precision, 64)); err != nil || back != d {
			t.Fatalf("%s became %s, %v", d, back, err)
		}
		if up, err := CeilFromFloat(f); err != nil || up != d {
			t.Fatalf("CeilFromFloat(%v) = %s, %v", f, up, err)
		}
	})
}

func TestCeilFromFloatIsAboveByLessThanAMicro(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := rapid.Float64Range(0, 1e6).Draw(t, "price")
		up, err := CeilFromFloat(f)
		if err != nil {
			t.Fatal(err)
		}
		exact := new(big.Rat).Mul(new(big.Rat).SetFloat64(f), big.NewRat(microsPerUnit, 1))
		above := new(big.Rat).Sub(new(big.Rat).SetInt64(up.Micros()), exact)
		noise := new(big.Rat).Quo(exact, big.NewRat(floatNoise/2, 1))
		if above.Cmp(new(big.Rat).Neg(noise)) < 0 || above.Cmp(new(big.Rat).Add(big.NewRat(1, 1), noise)) >= 0 {
			t.Fatalf("CeilFromFloat(%v) = %s", f, up)
		}
	})
}

func TestOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := anyRate.Draw(t, "a"), anyRate.Draw(t, "b"), anyRate.Draw(t, "c")
		if a.Cmp(b) != -b.Cmp(a) || a.Less(b) != (a.Cmp(b) < 0) || (a == b) != (a.Cmp(b) == 0) {
			t.Fatalf("%s and %s do not compare", a, b)
		}
		if a.Cmp(b) <= 0 && b.Cmp(c) <= 0 && a.Cmp(c) > 0 {
			t.Fatal("order is not transitive")
		}
		if Min(a, b).Cmp(Max(a, b)) > 0 {
			t.Fatal("min above max")
		}
		if a.Less(b) && a.Add(c).Cmp(b.Add(c)) > 0 {
			t.Fatal("adding the same turns the order round")
		}
	})
}

func TestAlgebra(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, y := anyRate.Draw(t, "x"), anyRate.Draw(t, "y")
		if x.Add(y) != y.Add(x) || x.Add(Dollars{}) != x || x.Sub(Dollars{}) != x || !x.Sub(x).IsZero() {
			t.Fatal("addition of any two")
		}
		a, b, c := sane.Draw(t, "a"), sane.Draw(t, "b"), sane.Draw(t, "c")
		if a.Add(b).Add(c) != a.Add(b.Add(c)) || a.Add(b).Sub(b) != a {
			t.Fatal("addition of sane rates")
		}
		n := rapid.IntRange(0, 64).Draw(t, "n")
		sum := Dollars{}
		for range n {
			sum = sum.Add(a)
		}
		if a.MulInt(n) != sum || a.MulFrac(int64(n), 1) != sum {
			t.Fatalf("%s times %d is not %s", a, n, sum)
		}
	})
}

// The reference is the exact quotient in big integers.
func TestMulDivAgainstBig(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Int64().Draw(t, "a"), rapid.Int64().Draw(t, "b")
		den := rapid.Int64Min(1).Draw(t, "den")
		product := new(big.Int).Mul(big.NewInt(a), big.NewInt(b))
		two := big.NewInt(2)
		up := new(big.Int).Add(product, big.NewInt(den-1))
		half := new(big.Int).Add(new(big.Int).Mul(product, two), big.NewInt(den))
		for how, want := range map[rounding]*big.Int{
			ceil:   floorDiv(up, big.NewInt(den)),
			halfUp: floorDiv(half, new(big.Int).Mul(big.NewInt(den), two)),
		} {
			clamped := saturated(want.Sign() < 0)
			if want.IsInt64() {
				clamped = want.Int64()
			}
			if got := mulDiv(a, b, den, how); got != clamped {
				t.Fatalf("%d×%d/%d rounding %d = %d; want %d", a, b, den, how, got, clamped)
			}
		}
	})
}

func floorDiv(a, b *big.Int) *big.Int {
	quo, rem := new(big.Int).QuoRem(a, b, new(big.Int))
	if rem.Sign() < 0 {
		quo.Sub(quo, big.NewInt(1))
	}
	return quo
}

func TestForIsMonotoneAndWithinHalfAMicro(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := sane.Draw(t, "rate")
		short := time.Duration(rapid.Int64Range(0, int64(1000*time.Hour)).Draw(t, "short"))
		long := short + time.Duration(rapid.Int64Range(0, int64(1000*time.Hour)).Draw(t, "more"))
		if d.For(long).Less(d.For(short)) {
			t.Fatal("longer is cheaper")
		}
		if dearer := d.Add(sane.Draw(t, "dearer")); dearer.For(short).Less(d.For(short)) {
			t.Fatal("a higher rate is cheaper")
		}
		exact := new(big.Rat).SetFrac(
			new(big.Int).Mul(big.NewInt(d.Micros()), big.NewInt(int64(short))), big.NewInt(int64(time.Hour)))
		off := new(big.Rat).Sub(new(big.Rat).SetInt64(d.For(short).Micros()), exact)
		if off.Abs(off).Cmp(big.NewRat(1, 2)) > 0 {
			t.Fatalf("%s for %s is off by %s micros", d, short, off)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"0.50", "-1", "9223372036854.775807", "1e5", "0.0000001", "", "00", "."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := Parse(s)
		if err != nil {
			return
		}
		want, ok := new(big.Rat).SetString(s)
		if !ok || want.Mul(want, big.NewRat(microsPerUnit, 1)).Cmp(new(big.Rat).SetInt64(d.Micros())) != 0 {
			t.Fatalf("Parse(%q) = %s", s, d)
		}
	})
}

func FuzzUnmarshalJSON(f *testing.F) {
	for _, s := range []string{"0.50", "5e-1", "null", `"1"`, "1e400", "1e-400", "3.000000002", "[]", "-0.0"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var d, back Dollars
		if json.Unmarshal(data, &d) != nil {
			return
		}
		out, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(out, &back); err != nil || back != d {
			t.Fatalf("%s reads as %s, written as %s, read back as %s, %v", data, d, out, back, err)
		}
	})
}

// Whatever the API's rule of six decimals lets into storage can be read: one object that cannot would stop every list of
// its kind. The rule is written out as the CRDs have it.
func TestReadsWhatTheAPIServerStores(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := rapid.Int64Range(0, 1e15).Draw(t, "micros")
		stored := (float64(d) + rapid.Float64Range(-2e-3, 2e-3).Draw(t, "noise")) / 1e6
		off := float64(int64(stored*1e6+0.5)) - stored*1e6
		if stored >= 0 && math.Abs(off) >= 0.001 {
			t.Skip("refused by the API server")
		}
		var back Dollars
		if err := back.UnmarshalJSON(strconv.AppendFloat(nil, stored, 'g', -1, 64)); err != nil {
			t.Fatal(err)
		}
		if off := float64(back.Micros()) - stored*1e6; math.Abs(off) > 1+1e-12*math.Abs(stored*1e6) {
			t.Fatalf("%v read as %s", stored, back)
		}
	})
}
