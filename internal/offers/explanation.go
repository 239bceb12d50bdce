package offers

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/munhq/gpuscale/pkg/money"
)

// Explanation says what became of a list of offers. The zero value explains an empty list.
type Explanation struct {
	// Total is how many offers were judged; those that Counts leaves over fit.
	Total  int
	Counts map[Rejection]int
	// RestingUntil is when the first of the resting offers is back; zero where none rests.
	RestingUntil time.Time
	// MaxPrice is the price limit, LeastMaxPrice the lowest of several after Merge.
	MaxPrice      money.Dollars
	LeastMaxPrice money.Dollars
	// CheapestOver is the lowest price among those counted as OverPrice, which satisfy all but the price: raising the
	// limit to it would help. Meaningless where there is none.
	CheapestOver money.Dollars
}

// Kept is how many offers fit.
func (e Explanation) Kept() int {
	kept := e.Total
	for _, n := range e.Counts {
		kept -= n
	}
	return kept
}

// Merge joins the accounts of several lists. Price limits are those of the lists that had something over theirs, if any
// had.
func (e Explanation) Merge(others ...Explanation) Explanation {
	for _, o := range others {
		e = e.merge(o)
	}
	return e
}

func (e Explanation) merge(o Explanation) Explanation {
	out := Explanation{Total: e.Total + o.Total, Counts: map[Rejection]int{},
		RestingUntil: earliest(e.RestingUntil, o.RestingUntil)}
	for _, counts := range []map[Rejection]int{e.Counts, o.Counts} {
		for r, n := range counts {
			out.Counts[r] += n
		}
	}
	switch {
	case o.pricesCount() < e.pricesCount():
		out.setPrices(e)
	case e.pricesCount() < o.pricesCount():
		out.setPrices(o)
	default:
		out.MaxPrice = money.Max(e.MaxPrice, o.MaxPrice)
		out.LeastMaxPrice = money.Min(e.LeastMaxPrice, o.LeastMaxPrice)
		out.CheapestOver = money.Min(e.CheapestOver, o.CheapestOver)
	}
	return out
}

// pricesCount ranks how much an explanation's price limits have to say: they kept something out, they were applied, or
// there was nothing to apply them to.
func (e Explanation) pricesCount() int {
	switch {
	case e.Counts[OverPrice] > 0:
		return 2
	case e.Total > 0:
		return 1
	}
	return 0
}

func (e *Explanation) setPrices(from Explanation) {
	e.MaxPrice, e.LeastMaxPrice, e.CheapestOver = from.MaxPrice, from.LeastMaxPrice, from.CheapestOver
}

// String reads "214 offers: 180 over $0.50, 22 wrong GPU, 12 resting until 10:32": the largest number first, equal ones
// in the order in which they are judged, times in UTC. Offers that fit come before all ("3 fit").
func (e Explanation) String() string {
	if e.Total == 0 {
		return "no offers"
	}
	var parts []string
	if kept := e.Kept(); kept > 0 {
		parts = append(parts, fmt.Sprintf("%d fit", kept))
	}
	if out := e.LeftOut(); out != "" {
		parts = append(parts, out)
	}
	noun := "offers"
	if e.Total == 1 {
		noun = "offer"
	}
	return fmt.Sprintf("%d %s: %s", e.Total, noun, strings.Join(parts, ", "))
}

// LeftOut is String's account of what does not fit: "180 over $0.50, 22 wrong GPU". Empty where all fit.
func (e Explanation) LeftOut() string {
	order := slices.DeleteFunc(Rejections(), func(r Rejection) bool { return e.Counts[r] == 0 })
	slices.SortStableFunc(order, func(a, b Rejection) int { return e.Counts[b] - e.Counts[a] })
	parts := make([]string, len(order))
	for i, r := range order {
		parts[i] = fmt.Sprintf("%d %s", e.Counts[r], e.phrase(r))
	}
	return strings.Join(parts, ", ")
}

// phrase is the rejection's, with the limit or time that applied.
func (e Explanation) phrase(r Rejection) string {
	switch {
	case r == OverPrice && e.LeastMaxPrice != e.MaxPrice:
		return fmt.Sprintf("over $%s to $%s", e.LeastMaxPrice, e.MaxPrice)
	case r == OverPrice:
		return fmt.Sprintf("over $%s", e.MaxPrice)
	case r == Resting && !e.RestingUntil.IsZero():
		return "resting until " + e.RestingUntil.UTC().Format("15:04")
	}
	return r.Phrase()
}
