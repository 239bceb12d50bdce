package main

import (
	"github.com/munhq/gpuscale/internal/quote"
	"github.com/munhq/gpuscale/pkg/money"
)

// The plan for programs.
type (
	purchaseDocument struct {
		Claim    string        `json:"claim"`
		Pool     string        `json:"pool"`
		Offer    offerDocument `json:"offer"`
		Reserves money.Dollars `json:"reservesDollarsPerHour"`
		Models   []string      `json:"models"`
		Reason   string        `json:"reason"`
	}
	servedDocument struct {
		Model  string `json:"model"`
		Claim  string `json:"claim"`
		Reason string `json:"reason"`
	}
	unmetDocument struct {
		Model   string `json:"model,omitempty"`
		Pod     string `json:"pod,omitempty"`
		Pool    string `json:"pool,omitempty"`
		Missing int    `json:"missing,omitempty"`
		Reason  string `json:"reason"`
		Message string `json:"message"`
	}
	marketDocument struct {
		Pool          string `json:"pool"`
		Entry         int    `json:"entry"`
		OffersSeen    int    `json:"offersSeen"`
		FailedBecause string `json:"failedBecause,omitempty"`
	}
)

func planDocument(p quote.Plan) any {
	d := struct {
		Buys      []purchaseDocument `json:"buys"`
		Served    []servedDocument   `json:"served,omitempty"`
		NotBought []unmetDocument    `json:"notBought"`
		Markets   []marketDocument   `json:"markets"`
		Notes     []string           `json:"notes,omitempty"`
		Failed    []failureDocument  `json:"failed"`
	}{Buys: []purchaseDocument{}, NotBought: []unmetDocument{}, Markets: []marketDocument{}, Notes: idle(p), Failed: failuresOf(p.Failed)}
	for _, b := range p.Purchases {
		d.Buys = append(d.Buys, purchaseDocument{b.ClaimName, b.Pool, offerOf(b.Offer), b.Reservation.DollarsPerHour,
			b.Reservation.Workloads, b.Reason})
	}
	for _, b := range p.Bindings {
		d.Served = append(d.Served, servedDocument{b.Placement.Workload, b.Claim, b.Reason})
	}
	for _, u := range p.Unmet {
		d.NotBought = append(d.NotBought, unmetDocument{Model: u.Workload, Missing: u.Missing, Reason: u.Reason, Message: u.Message})
	}
	for _, u := range p.Demand.Problems {
		doc := unmetDocument{Pool: u.Pool, Reason: u.Reason, Message: u.Message}
		if u.Pool == "" {
			doc.Pod = u.Pod.String()
		}
		d.NotBought = append(d.NotBought, doc)
	}
	for _, m := range p.Markets {
		d.Markets = append(d.Markets, marketDocument{m.Pool, m.Entry, len(m.Offers), m.Err})
	}
	return d
}
