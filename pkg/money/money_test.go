package money

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	good := map[string]int64{
		"0": 0, "0.5": 500000, "0.50": 500000, "3": 3000000, "3.00": 3000000, "0.000001": 1, "12.345678": 12345678,
		"0.5000000000": 500000, "-0.25": -250000, "-0": 0,
		"9223372036854.775807": math.MaxInt64, "-9223372036854.775808": math.MinInt64,
	}
	for in, want := range good {
		if got, err := Parse(in); err != nil || got.Micros() != want {
			t.Errorf("Parse(%q) = %d, %v; want %d", in, got.Micros(), err, want)
		}
	}
	bad := []string{
		"", " ", "-", "+1", ".5", "5.", "01", "1e3", "1E-2", "0x10", "NaN", "Inf", "1,000", "$1", "1 ", " 1", "1_0", "1.2.3",
		"0.1234567", "9223372036854.775808", "-9223372036854.775809", "1.-5", "--1", "٣", strings.Repeat("9", 65),
	}
	for _, in := range bad {
		if got, err := Parse(in); err == nil {
			t.Errorf("Parse(%q) = %s; want an error", in, got)
		} else if got != (Dollars{}) {
			t.Errorf("Parse(%q) gives %s beside its error", in, got)
		}
	}
}

func TestMustParsePanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	MustParse("half a dollar")
}

func TestCeilFromFloat(t *testing.T) {
	tenth, fifth := 0.1, 0.2 // variables, since constants are added exactly
	good := []struct {
		in   float64
		want int64
	}{
		{0, 0}, {math.Copysign(0, -1), 0},
		{0.41, 410000}, {0.29, 290000}, {1.005, 1005000}, {4.35, 4350000},
		{tenth + fifth, 300000}, {math.Nextafter(0.41, 1), 410000}, {math.Nextafter(0.41, 0), 410000},
		{0.3451234, 345124}, {0.3451230001, 345124}, {0.345123, 345123},
		{1e-9, 1}, {math.SmallestNonzeroFloat64, 1}, {1e12, 1e18}, {98.32, 98320000},
	}
	for _, c := range good {
		if got, err := CeilFromFloat(c.in); err != nil || got.Micros() != c.want {
			t.Errorf("CeilFromFloat(%v) = %d, %v; want %d", c.in, got.Micros(), err, c.want)
		}
	}
	for _, in := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -0.01, 1e13, math.MaxFloat64} {
		if got, err := CeilFromFloat(in); err == nil {
			t.Errorf("CeilFromFloat(%v) = %s; want an error", in, got)
		}
	}
}

func TestString(t *testing.T) {
	for micros, want := range map[int64]string{
		0: "0.00", 1: "0.000001", 500000: "0.50", 3000000: "3.00", 123456: "0.123456", 120000: "0.12", 123000: "0.123",
		-1: "-0.000001", -2500000: "-2.50", math.MaxInt64: "9223372036854.775807", math.MinInt64: "-9223372036854.775808",
	} {
		if got := FromMicros(micros).String(); got != want {
			t.Errorf("%d micros print as %s; want %s", micros, got, want)
		}
		if got := AmountFromMicros(micros).String(); got != want {
			t.Errorf("an amount of %d micros prints as %s; want %s", micros, got, want)
		}
	}
}

func TestUnmarshalJSON(t *testing.T) {
	good := map[string]int64{
		"0.50": 500000, "3.00": 3000000, "3": 3000000, "5e-1": 500000, "5E+2": 500000000, "1.25e1": 12500000, "0e99999": 0,
		"1e-06": 1, " 0.5 ": 500000, "-1.5": -1500000, "0.5000000": 500000,
		// Float arithmetic in whatever wrote the object.
		"0.30000000000000004": 300000, "0.28999999999999998": 290000, "-0.30000000000000004": -300000,
		"-0.28999999999999998": -290000,
		// Let through by the API's rule, so it must be readable; rounded up.
		"3.0000000005": 3000001, "3.000000001": 3000001, "2.9999999995": 3000000, "1e-99999999999999999999": 1,
	}
	for in, want := range good {
		var d Dollars
		if err := json.Unmarshal([]byte(in), &d); err != nil || d.Micros() != want {
			t.Errorf("%s reads as %d, %v; want %d", in, d.Micros(), err, want)
		}
		var a Amount
		if err := json.Unmarshal([]byte(in), &a); err != nil || a.Micros() != want {
			t.Errorf("%s reads as the amount %d, %v; want %d", in, a.Micros(), err, want)
		}
	}
	for in, want := range map[string]string{
		`"0.50"`: "without quotes", `""`: "without quotes", "0.1234567": "six decimals", "1e-7": "six decimals",
		"3.00000001": "six decimals", "1e99999999999999999999": "too large", "1e13": "too large", "true": "not a number",
		"[1]": "not a number", "{}": "not a number", "3.0001000002e-4": "six decimals",
	} {
		d := FromMicros(7)
		if err := json.Unmarshal([]byte(in), &d); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v; want one that says %q", in, err, want)
		}
		if d != FromMicros(7) {
			t.Errorf("%s changed the value to %s beside its error", in, d)
		}
	}
	d := FromMicros(7)
	if err := json.Unmarshal([]byte("null"), &d); err != nil || d != FromMicros(7) {
		t.Errorf("null: %s, %v; want the value left alone", d, err)
	}
}

func TestInStructs(t *testing.T) {
	type spec struct {
		Max   Dollars  `json:"max"`
		Maybe *Dollars `json:"maybe,omitempty"`
		Spent Amount   `json:"spent,omitzero"`
	}
	got, err := json.Marshal(spec{Max: MustParse("0.5")})
	if err != nil || string(got) != `{"max":0.50}` {
		t.Errorf("%s, %v", got, err)
	}
	var back spec
	if err := json.Unmarshal([]byte(`{"max":3.00,"maybe":2,"spent":1.5}`), &back); err != nil {
		t.Fatal(err)
	}
	if back.Max != MustParse("3") || *back.Maybe != MustParse("2") || back.Spent.Micros() != 1500000 {
		t.Errorf("%+v", back)
	}
}

func TestArithmetic(t *testing.T) {
	half, most, least := MustParse("0.5"), FromMicros(math.MaxInt64), FromMicros(math.MinInt64)
	for name, c := range map[string]struct{ got, want Dollars }{
		"add":                     {half.Add(half), MustParse("1")},
		"add saturates":           {most.Add(half), most},
		"add saturates below":     {least.Add(FromMicros(-1)), least},
		"sub":                     {half.Sub(MustParse("0.75")), MustParse("-0.25")},
		"sub saturates":           {least.Sub(half), least},
		"sub of the least":        {half.Sub(least), most},
		"sub of the least itself": {least.Sub(least), FromMicros(0)},
		"times":                   {MustParse("1.10").MulInt(8), MustParse("8.80")},
		"times nothing":           {half.MulInt(0), FromMicros(0)},
		"times saturates":         {most.MulInt(2), most},
		"times minus saturates":   {most.MulInt(-2), least},
		"bid":                     {MustParse("0.40").MulFrac(115, 100), MustParse("0.46")},
		"bid rounds up":           {FromMicros(1).MulFrac(115, 100), FromMicros(2)},
		"frac rounds towards +":   {FromMicros(-1).MulFrac(115, 100), FromMicros(-1)},
		"frac saturates":          {most.MulFrac(115, 100), most},
		"frac is exact when wide": {most.MulFrac(math.MaxInt64, math.MaxInt64), most},
		"min":                     {Min(half, most, least), least},
		"max":                     {Max(half, most, least), most},
		"min of one":              {Min(half), half},
	} {
		if c.got != c.want {
			t.Errorf("%s: %s; want %s", name, c.got, c.want)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("MulFrac by zero does not panic")
		}
	}()
	half.MulFrac(1, 0)
}

func TestFor(t *testing.T) {
	for _, c := range []struct {
		rate   string
		micros int64
		t      time.Duration
	}{
		{"0.50", 500000, time.Hour}, {"0.50", 250000, 30 * time.Minute}, {"0.50", 139, time.Second},
		{"1.00", 278, time.Second}, {"0.0018", 1, 2 * time.Second}, {"0.0018", 1, time.Second}, {"0.001799", 0, time.Second},
		{"0.50", 0, -time.Hour}, {"0.50", 0, 0}, {"98.32", 98320000 * 24 * 365, 365 * 24 * time.Hour},
		{"9223372036854.775807", math.MaxInt64, 2 * time.Hour}, {"-0.0018", 0, time.Second}, {"-0.0036", -1, time.Second},
	} {
		if got := MustParse(c.rate).For(c.t); got.Micros() != c.micros {
			t.Errorf("$%s/h for %s = %d micros; want %d", c.rate, c.t, got.Micros(), c.micros)
		}
	}
}

func TestDeepCopy(t *testing.T) {
	d := MustParse("0.5")
	c := d.DeepCopy()
	*c = MustParse("1")
	var into Dollars
	d.DeepCopyInto(&into)
	if d != MustParse("0.5") || into != d || (*Dollars)(nil).DeepCopy() != nil {
		t.Errorf("%s %s %s", d, c, into)
	}
	a := AmountFromMicros(5)
	b := a.DeepCopy()
	*b = AmountFromMicros(6)
	var intoA Amount
	a.DeepCopyInto(&intoA)
	if a != AmountFromMicros(5) || intoA != a || (*Amount)(nil).DeepCopy() != nil {
		t.Errorf("%s %s %s", a, b, intoA)
	}
}
