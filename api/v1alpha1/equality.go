package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/munhq/gpuscale/pkg/money"
)

// Equal reports whether two values of this package's types mean the same: times by the moment, quantities and dollars by
// their value, nil and empty lists alike.
func Equal(a, b any) bool { return equalities.DeepEqual(a, b) }

var equalities = func() interface{ DeepEqual(a, b any) bool } {
	e := equality.Semantic.Copy()
	if err := e.AddFuncs(
		func(a, b money.Dollars) bool { return a == b },
		func(a, b Duration) bool { return a == b },
	); err != nil {
		panic(err) // only a function of the wrong form, which no input causes
	}
	return e
}()
