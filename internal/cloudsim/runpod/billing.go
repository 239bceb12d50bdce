package runpod

import (
	"net/http"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// bills are the account's charges by the hour, or by the bucket that is asked for: one record per pod and bucket. What a
// pod cost is spread evenly over its life, and comes to what the market's books say to the nano-dollar.
func (s *Server) bills(w http.ResponseWriter, r *http.Request, _ caller) {
	v := r.URL.Query()
	now := s.market.Clock().Now().UTC()
	from, to := now.Add(-30*24*time.Hour), now
	for name, into := range map[string]*time.Time{"startTime": &from, "endTime": &to} {
		if text := v.Get(name); text != "" {
			at, err := time.Parse(time.RFC3339, text)
			if err != nil {
				fail(w, http.StatusUnprocessableEntity, name+" is not a date-time")
				return
			}
			*into = at.UTC()
		}
	}
	size, bucket := 24*time.Hour, v.Get("bucketSize")
	switch bucket {
	case "", "day":
		bucket = "day"
	case "hour":
		size = time.Hour
	default:
		fail(w, http.StatusUnprocessableEntity, "bucketSize: unsupported by this simulation")
		return
	}
	if v.Get("lastN") != "" {
		fail(w, http.StatusBadRequest, "lastN is not supported by this simulation")
		return
	}
	from, to = from.Truncate(size), to.Add(size-1).Truncate(size)
	records, totals, pods := []object{}, bill{}, map[string]bool{}
	for _, in := range s.market.Books().Instances {
		if in.Account != account || v.Get("podId") != "" && v.Get("podId") != in.ID {
			continue
		}
		for at := from; at.Before(to); at = at.Add(size) {
			b := billOf(in, at, at.Add(size), now)
			if b == (bill{}) {
				continue
			}
			pods[in.ID] = true
			totals.gpu, totals.disk = totals.gpu+b.gpu, totals.disk+b.disk
			record := b.amounts()
			record["podId"], record["startTime"], record["endTime"] = in.ID, at.Format(time.RFC3339), at.Add(size).Format(time.RFC3339)
			records = append(records, record)
		}
	}
	query := object{"startTime": from.Format(time.RFC3339), "endTime": to.Format(time.RFC3339), "bucketSize": bucket, "podId": orNull(v.Get("podId"))}
	reply(w, http.StatusOK, object{"records": records, "metadata": object{"query": query, "recordCount": len(records),
		"uniquePodCount": len(pods), "totals": totals.amounts()}})
}

type bill struct{ gpu, disk market.Nano }

func (b bill) amounts() object {
	return object{"totalAmount": (b.gpu + b.disk).Dollars(), "gpuAmount": b.gpu.Dollars(), "cpuAmount": 0, "diskAmount": b.disk.Dollars()}
}

// billOf is a pod's part of a bucket: what had run up at its end less what had at its beginning.
func billOf(in market.Instance, from, to, now time.Time) bill {
	end := now
	if !in.GoneAt.IsZero() {
		end = in.GoneAt
	}
	life := end.Sub(in.CreatedAt)
	upTo := func(at time.Time, n market.Nano) market.Nano {
		switch d := at.Sub(in.CreatedAt); {
		case d <= 0 || life <= 0:
			return 0
		case d >= life:
			return n
		default:
			return market.Nano(float64(n) * d.Seconds() / life.Seconds())
		}
	}
	return bill{gpu: upTo(to, in.GPUSpent) - upTo(from, in.GPUSpent), disk: upTo(to, in.StorageSpent) - upTo(from, in.StorageSpent)}
}
