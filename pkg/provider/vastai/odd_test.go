package vastai

import (
	"errors"
	"strings"
	"testing"

	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

// What is odd in an answer costs what it says, and nothing that stands beside it.

func TestAnOddRowHidesNoOther(t *testing.T) {
	p, _ := scripted(t, ok(`{"success":true,"total_instances":3,"next_token":null,"instances":[
		{"id":1,"label":"gs-a","actual_status":"running","num_gpus":"one","dph_total":"0.41","start_date":"yesterday"},
		{"id":2,"label":"gs-b","actual_status":7,"is_bid":"maybe","ports":"none"},
		{"id":3,"label":"gs-c","actual_status":"loading","dph_total":[]}]}`))
	all, err := p.ListInstances(t.Context(), provider.InstanceFilter{})
	if err != nil || len(all) != 3 {
		t.Fatalf("%d instances, %v", len(all), err)
	}
	for i, want := range []provider.State{provider.StateRunning, provider.StateUnknown, provider.StatePending} {
		if all[i].State != want || all[i].Tag == "" {
			t.Errorf("%+v; want %s", all[i], want)
		}
	}
	if all[0].Price == nil || all[0].Price.String() != "0.41" || all[1].Price != nil || all[2].Price != nil {
		t.Errorf("prices %s, %s, %s", all[0].Price, all[1].Price, all[2].Price)
	}
}

func TestARowWithoutANumberIsNoList(t *testing.T) {
	for _, row := range []string{`{"label":"gs-a"}`, `{"id":"x"}`, `{"id":0}`, `7`, `"x"`} {
		p, _ := scripted(t, ok(`{"success":true,"instances":[{"id":1},`+row+`]}`))
		if all, err := p.ListInstances(t.Context(), provider.InstanceFilter{}); provider.KindOf(err) != provider.Unknown {
			t.Errorf("%s: %d instances, %v; want no list at all", row, len(all), err)
		}
	}
}

func TestACreateWhoseSuccessIsOddNamesItsInstance(t *testing.T) {
	for _, answer := range []answerAs{
		ok(`{"success":"yes","new_contract":31000001}`),
		ok(`{"new_contract":31000001}`),
		{500, `{"success":true,"new_contract":31000001,"instance_api_key":"s3cret"}`},
		{400, `{"success":false,"error":{"a":1},"msg":["x"],"new_contract":"31000001"}`},
	} {
		p, _ := scripted(t, answer)
		_, err := p.CreateInstance(t.Context(), good())
		var e *provider.Error
		if !errors.As(err, &e) || e.InstanceID != "31000001" || provider.Refused(err) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", answer.body, err)
		}
	}
}

func TestAnInstancesKeyIsInNoError(t *testing.T) {
	p, _ := scripted(t, answerAs{500, `{"success":true,"new_contract":31000001,"instance_api_key":"s3cret","x`})
	_, err := p.CreateInstance(t.Context(), good())
	if err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%v", err)
	}
}

func TestACrashOnABidIsNoReclaim(t *testing.T) {
	for fields, interrupted := range map[string]bool{
		`"actual_status":"exited","cur_state":"running","intended_status":"running"`:                        false,
		`"actual_status":"exited","cur_state":"stopped","intended_status":"running"`:                        true,
		`"actual_status":"exited","cur_state":"stopped","intended_status":"stopped","next_state":"stopped"`: true,
		`"actual_status":"exited"`: true,
	} {
		p, _ := scripted(t, ok(`{"instances":{"id":1,"is_bid":true,`+fields+`}}`))
		if got, err := p.GetInstance(t.Context(), "1"); err != nil || got.State != provider.StateFailed || got.Interrupted != interrupted {
			t.Errorf("%s: %s, interrupted %v, %v", fields, got.State, got.Interrupted, err)
		}
	}
}

func good() provider.CreateRequest {
	price := money.MustParse("0.41")
	return provider.CreateRequest{
		Offer: provider.Offer{ID: "77", CapacityType: provider.OnDemand, Price: price, DiskGB: 40},
		Tag:   "gs-a", MaxPrice: price, DiskGB: 40,
		Boot: provider.Boot{Image: "x:y", Command: []string{"/bin/true"}, Port: 9443},
	}
}
