package vastai

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

const (
	defaultLimit   = 64
	defaultStorage = 8
)

// query is a search as understood.
type query struct {
	conditions []condition
	kind       string
	limit      int
	storage    float64
	order      []ordering
}

type ordering struct {
	column string
	desc   bool
}

func (s *Server) searchBundles(w http.ResponseWriter, r *http.Request, _ caller) {
	body, err := readObject(w, r)
	if err != nil {
		s.badQuery(w, "Invalid json body")
		return
	}
	s.answerSearch(w, body)
}

// searchQuery is the older form with the same object as a query parameter.
func (s *Server) searchQuery(w http.ResponseWriter, r *http.Request, _ caller) {
	body := object{}
	if q := r.URL.Query().Get("q"); q != "" {
		if err := json.Unmarshal([]byte(q), &body); err != nil || body == nil {
			s.badQuery(w, "Invalid json in q")
			return
		}
	}
	s.answerSearch(w, body)
}

// searchAsks is the older form with the query one level down.
func (s *Server) searchAsks(w http.ResponseWriter, r *http.Request, _ caller) {
	body, err := readObject(w, r)
	q, ok := body["q"].(object)
	if err != nil || !ok {
		s.badQuery(w, "Invalid json body")
		return
	}
	s.answerSearch(w, q)
}

func (s *Server) badQuery(w http.ResponseWriter, msg string) {
	s.fail(w, http.StatusBadRequest, "invalid_request", msg)
}

func (s *Server) answerSearch(w http.ResponseWriter, body object) {
	q, err := readQuery(body)
	if err != nil {
		s.badQuery(w, "Error in query parameters: "+err.Error())
		return
	}
	now := s.market.Clock().Now()
	rows := []object{}
	for _, o := range s.market.Offers() {
		row := offerRow(o, q.kind, q.storage, now)
		if allHold(q.conditions, filterView(row)) {
			rows = append(rows, row)
		}
	}
	slices.SortStableFunc(rows, func(a, b object) int { return orderRows(q.order, a, b) })
	rows = rows[:min(len(rows), q.limit)]
	reply(w, http.StatusOK, object{"offers": rows})
}

func readQuery(body object) (query, error) {
	q := query{kind: "ondemand", limit: defaultLimit, storage: defaultStorage}
	// The vendor's own defaults, which hold for whatever the body leaves out.
	filters := object{"verified": object{"eq": true}, "rentable": object{"eq": true}, "rented": object{"eq": false}}
	columns := offerColumns()
	for _, key := range sortedKeys(body) {
		var err error
		switch v := body[key]; key {
		case "type":
			err = q.readType(v)
		case "limit":
			err = q.readLimit(v)
		case "allocated_storage":
			err = q.readStorage(v)
		case "order":
			q.order, err = readOrder(v, columns)
		default:
			filters[key] = v
		}
		if err != nil {
			return q, err
		}
	}
	var err error
	q.conditions, err = columns.conditions(filters)
	return q, err
}

func (q *query) readType(v any) error {
	switch v {
	case "ondemand", "on-demand", "reserved":
		q.kind = "ondemand"
	case "bid":
		q.kind = "bid"
	default:
		return fmt.Errorf("%v is not a valid type", v)
	}
	return nil
}

func (q *query) readLimit(v any) error {
	n, ok := v.(float64)
	if !ok || n < 1 || n != float64(int(n)) {
		return errors.New("limit must be a positive integer")
	}
	q.limit = int(n)
	return nil
}

func (q *query) readStorage(v any) error {
	n, ok := v.(float64)
	if !ok || n < 0 {
		return errors.New("allocated_storage must be a number")
	}
	q.storage = n
	return nil
}

// readOrder reads [["dph_total", "asc"], …].
func readOrder(v any, c columns) ([]ordering, error) {
	list, ok := v.([]any)
	if !ok {
		return nil, errors.New("order must be a list of pairs")
	}
	var out []ordering
	for _, item := range list {
		pair, _ := item.([]any)
		if len(pair) != 2 {
			return nil, errors.New("order must be a list of pairs")
		}
		column, _ := pair[0].(string)
		if _, known := c[column]; !known {
			return nil, fmt.Errorf("%v is not a valid search key", pair[0])
		}
		if pair[1] != "asc" && pair[1] != "desc" {
			return nil, fmt.Errorf("%v is not a valid direction", pair[1])
		}
		out = append(out, ordering{column, pair[1] == "desc"})
	}
	return out, nil
}

func orderRows(by []ordering, a, b object) int {
	for _, o := range by {
		n, ok := compare(a[o.column], b[o.column])
		if !ok {
			n = btoi(a[o.column] != nil) - btoi(b[o.column] != nil)
		}
		if n != 0 && o.desc {
			return -n
		}
		if n != 0 {
			return n
		}
	}
	return 0
}

// filterView is a row with what can be filtered by and is not shown, and with the country where the place is shown.
func filterView(row object) object {
	view := object{}
	for k, v := range row {
		view[k] = v
	}
	view["verified"] = row["verification"] == "verified"
	view["datacenter"] = row["hosting_type"] == 1
	view["external"] = false
	view["ubuntu_version"] = row["os_version"]
	if place, ok := row["geolocation"].(string); ok {
		_, view["geolocation"], _ = strings.Cut(place, ", ")
	}
	return view
}

func (s *Server) gpuNames(w http.ResponseWriter, _ *http.Request, _ caller) {
	names := []string{}
	for _, o := range s.market.Offers() {
		if !slices.Contains(names, o.GPU) {
			names = append(names, o.GPU)
		}
	}
	slices.Sort(names)
	reply(w, http.StatusOK, object{"gpu_names": names})
}

func (s *Server) user(w http.ResponseWriter, _ *http.Request, c caller) {
	if s.opts.NoUserRead {
		s.fail(w, http.StatusForbidden, "not_authorized", "This key lacks the permission user_read")
		return
	}
	left, limited := s.market.Credit()
	if !limited {
		left = 100 * market.Nano1
	}
	// The account lives on credit, so its balance shows nothing: usable money is the sum of both.
	reply(w, http.StatusOK, object{"id": json.Number(strings.TrimPrefix(c.account, accountPrefix)), "key_id": 1, "email": "buyer@example.com", "balance": 0.0,
		"credit": left.Dollars(), "ssh_key": "", "sid": "sim", "username": "buyer"})
}
