package vastai

import (
	"context"
	"encoding/json"
	"math/big"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/rest"
)

var _ provider.Accountant = (*Provider)(nil)

// chargesPage is the most that a page of charges holds.
const chargesPage = 500

// Charges reads what each instance was charged. The vendor rounds a contract's total to a tenth of a cent and says
// nothing of the kinds that it consists of (gpu, disk, traffic), so those are added up; where they too have no more than
// three decimals the Step says so. The key needs the right to read billing, which one for renting may lack: Unauthorized.
func (p *Provider) Charges(ctx context.Context, from, to time.Time) ([]provider.Charge, error) {
	filters, err := json.Marshal(map[string]op{
		"day":  {"gte": from.Unix(), "lte": to.Unix()},
		"type": {"in": []string{"instance"}},
	})
	if err != nil {
		return nil, invalid(opCharges, "from %s to %s: %v", from, to, err)
	}
	query := url.Values{"select_filters": {string(filters)}, "limit": {strconv.Itoa(chargesPage)}}
	var out []provider.Charge
	for range maxPages {
		page, err := p.chargesPage(ctx, query)
		if err != nil {
			return nil, err
		}
		for _, w := range *page.Results {
			id, ok := strings.CutPrefix(value(w.Source), "instance-")
			if !ok {
				continue
			}
			c, err := w.charge(id)
			if err != nil {
				return nil, p.odd(opCharges, "the charge of instance %s cannot be read: %v", id, err)
			}
			out = append(out, c)
		}
		token := value(page.NextToken)
		if token == "" {
			return out, nil
		}
		query.Set("after_token", token)
	}
	return nil, p.odd(opCharges, "more than %d pages", maxPages)
}

func (p *Provider) chargesPage(ctx context.Context, query url.Values) (chargesReply, error) {
	reply, err := p.call(ctx, opCharges, rest.Call{
		Endpoint: endpointCharges, Method: http.MethodGet, Path: "/api/v0/charges/", Query: query,
	})
	if err != nil {
		return chargesReply{}, err
	}
	var page chargesReply
	if err := json.Unmarshal(reply.Body, &page); err != nil {
		return page, p.odd(opCharges, "the answer is not what charges answers: %v", err)
	}
	if page.Results == nil {
		return page, p.odd(opCharges, "the answer has no results")
	}
	return page, nil
}

// charge adds up the kinds of a contract's charges.
func (w wireCharge) charge(id string) (provider.Charge, error) {
	parts := w.Items
	if len(parts) == 0 {
		parts = []wireCharge{w}
	}
	const thousandth, micro = 1000, 1_000_000
	sum, step := new(big.Rat), int64(micro/thousandth)
	for _, part := range parts {
		amount, ok := new(big.Rat).SetString(part.Amount.String())
		if !ok {
			return provider.Charge{}, strconv.ErrSyntax
		}
		if !new(big.Rat).Mul(amount, big.NewRat(thousandth, 1)).IsInt() {
			step = 1
		}
		sum.Add(sum, amount)
	}
	amount, err := money.ParseAmount(sum.FloatString(6)) // rounds half away from zero
	return provider.Charge{InstanceID: id, From: epoch(&w.Start), To: epoch(&w.End), Amount: amount,
		Step: money.AmountFromMicros(step)}, err
}
