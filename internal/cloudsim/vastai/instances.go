package vastai

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
)

const pageSize = 25

// listV0 is the list that the vendor has taken out of service.
func (s *Server) listV0(w http.ResponseWriter, _ *http.Request, _ caller) {
	s.fail(w, http.StatusGone, "deprecated_endpoint", "This endpoint is deprecated; use /api/v1/instances/")
}

// show answers with one instance under a plural name, and with null, not 404, for one that is gone.
func (s *Server) show(w http.ResponseWriter, r *http.Request, c caller) {
	id, ok := s.instanceID(w, r)
	if !ok {
		return
	}
	in, err := s.market.Get(c.account, id)
	switch {
	case s.opts.ShowAsList && err != nil:
		reply(w, http.StatusOK, object{"instances": []any{}})
	case s.opts.ShowAsList:
		reply(w, http.StatusOK, object{"instances": []any{s.instanceRow(in)}})
	case err != nil:
		reply(w, http.StatusOK, object{"instances": nil})
	default:
		reply(w, http.StatusOK, object{"instances": s.instanceRow(in)})
	}
}

// listQuery is a list call as understood.
type listQuery struct {
	limit      int
	after      object
	order      []ordering
	columns    []string
	conditions []condition
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, c caller) {
	q, slug, err := readListQuery(r)
	if err != nil {
		s.fail(w, http.StatusBadRequest, slug, "Error in query parameters: "+err.Error())
		return
	}
	var rows []object
	labels := map[string]int{}
	for _, in := range s.market.List(c.account) {
		row := s.instanceRow(in)
		if allHold(q.conditions, row) {
			rows = append(rows, row)
			labels[in.Label]++
		}
	}
	slices.SortStableFunc(rows, func(a, b object) int { return orderRows(q.order, a, b) })
	total := len(rows)
	if q.after != nil {
		rows = slices.DeleteFunc(rows, func(row object) bool { return orderRows(q.order, row, q.after) <= 0 })
	}
	var next any
	if len(rows) > q.limit {
		rows = rows[:q.limit]
		next = q.token(rows[len(rows)-1])
	}
	shown := make([]object, 0, len(rows))
	for _, row := range rows {
		shown = append(shown, q.project(row))
	}
	reply(w, http.StatusOK, object{"success": true, "instances_found": len(shown), "total_instances": total,
		"label_counts": labels, "next_token": next, "instances": shown})
}

func readListQuery(r *http.Request) (q listQuery, slug string, err error) {
	const invalid = "invalid_request"
	v := r.URL.Query()
	q.limit = pageSize
	if s := v.Get("limit"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			return q, invalid, fmt.Errorf("limit %s", s)
		}
		if q.limit = min(n, pageSize); n <= 0 {
			q.limit = 5
		}
	}
	filters := object{}
	if s := v.Get("select_filters"); s != "" {
		if json.Unmarshal([]byte(s), &filters) != nil {
			return q, invalid, fmt.Errorf("select_filters is not a JSON object")
		}
	}
	columns := contractColumns()
	if q.conditions, err = columns.conditions(filters); err != nil {
		return q, invalid, err
	}
	if q.order, err = readListOrder(v.Get("order_by"), columns); err != nil {
		return q, invalid, err
	}
	if s := v.Get("select_cols"); s != "" {
		if json.Unmarshal([]byte(s), &q.columns) != nil {
			return q, invalid, fmt.Errorf("select_cols is not a JSON array of names")
		}
	}
	if s := v.Get("after_token"); s != "" {
		if q.after, err = readToken(s); err != nil {
			return q, "invalid_token", err
		}
	}
	return q, "", nil
}

// readListOrder reads [{"col": "id", "dir": "asc"}]; the id is always the last resort.
func readListOrder(s string, c columns) ([]ordering, error) {
	var given []struct{ Col, Dir string }
	if s != "" && json.Unmarshal([]byte(s), &given) != nil {
		return nil, fmt.Errorf("order_by is not a JSON array")
	}
	var out []ordering
	for _, g := range given {
		if _, known := c[g.Col]; !known {
			return nil, fmt.Errorf("%s is not a valid search key", g.Col)
		}
		out = append(out, ordering{g.Col, g.Dir == "desc"})
	}
	return append(out, ordering{column: "id"}), nil
}

// token marks a place in the order by the values that the last row has in it, so that pages hold when rows come and go.
func (q listQuery) token(last object) string {
	values := object{}
	for _, o := range q.order {
		values[o.column] = last[o.column]
	}
	raw, err := json.Marshal(object{"values": values})
	if err != nil {
		return "" // Rows hold only what JSON can.
	}
	return base64.StdEncoding.EncodeToString(raw)
}

func readToken(s string) (object, error) {
	raw, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return nil, fmt.Errorf("invalid after_token")
	}
	var t struct{ Values object }
	if json.Unmarshal(raw, &t) != nil || t.Values["id"] == nil {
		return nil, fmt.Errorf("invalid after_token")
	}
	return t.Values, nil
}

func (q listQuery) project(row object) object {
	if len(q.columns) == 0 || slices.Contains(q.columns, "*") {
		return row
	}
	out := object{}
	for _, c := range q.columns {
		out[c] = row[c]
	}
	return out
}
