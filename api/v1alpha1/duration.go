package v1alpha1

import (
	"encoding/json"
	"fmt"
	"time"
)

// Duration is a length of time written like "90s", "10m" or "1h30m". The rule admits nothing that overflows a
// time.Duration: one object that cannot be decoded would stop every list of its kind.
//
// +kubebuilder:validation:Type=string
// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,3})?(ms|s|m)|[0-9]{1,5}([.][0-9]{1,3})?h){1,4}$')",message="must be a duration such as \"90s\", \"10m\" or \"1h30m\""
// +kubebuilder:validation:MaxLength=32
type Duration struct {
	time.Duration `json:"-"`
}

// MarshalJSON writes the form that a person would ("2m", not "2m0s").
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(FormatDuration(d.Duration)) }

// UnmarshalJSON reads a Go duration string.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("duration: want a string such as \"90s\", got %s", b)
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("duration: %q is not of the form \"90s\", \"10m\" or \"1h30m\"", s)
	}
	d.Duration = v
	return nil
}

// Or returns the duration, or def where d is nil.
func (d *Duration) Or(def time.Duration) time.Duration {
	if d == nil {
		return def
	}
	return d.Duration
}

// FormatDuration drops the zero units that time.Duration.String leaves behind: "2m", "1h", "1h30m".
func FormatDuration(d time.Duration) string {
	s := d.String()
	if n := len(s); n > 2 && s[n-2:] == "0s" && s[n-3] == 'm' {
		s = s[:n-2]
	}
	if n := len(s); n > 2 && s[n-2:] == "0m" && s[n-3] == 'h' {
		s = s[:n-2]
	}
	return s
}
