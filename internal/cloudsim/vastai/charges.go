package vastai

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// chargeFilters is the query's select_filters.
type chargeFilters struct {
	Day struct {
		GTE *float64 `json:"gte"`
		LTE *float64 `json:"lte"`
	} `json:"day"`
	Type struct {
		In []string `json:"in"`
	} `json:"type"`
}

// charges is the account of every instance that was billed between two times, newest first as by default: totals to three
// decimals, as the vendor describes them, and the kinds that they consist of as exact as the market's books.
func (s *Server) charges(w http.ResponseWriter, r *http.Request, c caller) {
	var f chargeFilters
	err := json.Unmarshal([]byte(r.URL.Query().Get("select_filters")), &f)
	if err != nil || f.Day.GTE == nil || f.Day.LTE == nil {
		s.refuse(w, http.StatusBadRequest, object{"success": false, "msg": "Must provide both 'day' gte and lte filters for instance charges"})
		return
	}
	limit, from := 100, 0
	for name, into := range map[string]*int{"limit": &limit, "after_token": &from} {
		text := r.URL.Query().Get(name)
		if text == "" {
			continue
		}
		if *into, err = strconv.Atoi(text); err != nil || *into < 1 {
			s.refuse(w, http.StatusBadRequest, object{"success": false, "error": "invalid_" + name, "msg": "Invalid pagination token"})
			return
		}
	}
	limit = min(limit, 500)
	rows := []object{}
	books := s.market.Books()
	for _, in := range slices.Backward(books.Instances) {
		end := books.At
		if !in.GoneAt.IsZero() {
			end = in.GoneAt
		}
		if in.Account != c.account || unix(end) < *f.Day.GTE || unix(in.CreatedAt) > *f.Day.LTE ||
			len(f.Type.In) > 0 && !slices.Contains(f.Type.In, "instance") {
			continue
		}
		rows = append(rows, chargeRow(in, end))
	}
	total := len(rows)
	rows = rows[min(from, total):]
	var token any
	if len(rows) > limit {
		rows, token = rows[:limit], strconv.Itoa(from+limit)
	}
	reply(w, http.StatusOK, object{"success": true, "count": len(rows), "total": total, "next_token": token, "results": rows})
}

func chargeRow(in market.Instance, end time.Time) object {
	start, stop := in.CreatedAt.Unix(), int64(math.Ceil(unix(end)))
	item := func(kind string, amount, rate market.Nano) object {
		return object{"start": start, "end": stop, "type": kind, "source": nil, "amount": amount, "metadata": object{},
			"description": fmt.Sprintf("%.3f hours at $%s/hour", end.Sub(in.CreatedAt).Hours(), rate), "items": []object{}}
	}
	metadata := object{}
	if in.Label != "" {
		metadata["label"] = in.Label
	}
	return object{"start": start, "end": stop, "type": "instance", "source": "instance-" + in.ID,
		"description": fmt.Sprintf("Instance %s Charges", in.ID), "amount": math.Round(in.Spent.Dollars()*1000) / 1000, "metadata": metadata,
		"items": []object{item("gpu", in.GPUSpent, in.GPURate), item("disk", in.StorageSpent, in.StorageRate)}}
}
