package agent

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
)

// awsNotices reads EC2's instance metadata, version 2: the spot notice two minutes ahead, and before it, at best, the
// recommendation to rebalance.
type awsNotices struct {
	metadata
	poll  time.Duration
	token string
}

const (
	awsSession   = "/latest/api/token"
	awsAction    = "/latest/meta-data/spot/instance-action"
	awsRebalance = "/latest/meta-data/events/recommendations/rebalance"
)

func (s *awsNotices) every() time.Duration  { return s.poll }
func (*awsNotices) patience() time.Duration { return 5 * time.Second }

func (s *awsNotices) ask(ctx context.Context) (*agentapi.Notice, error) {
	var action struct {
		Action string    `json:"action"`
		Time   time.Time `json:"time"`
	}
	if there, err := s.get(ctx, awsAction, &action); err != nil || there {
		switch action.Action {
		case "terminate", "stop", "hibernate":
			return &agentapi.Notice{Kind: agentapi.NoticeInterrupted, At: moment(action.Time), Message: "EC2 spot: " + action.Action}, err
		}
		return nil, err
	}
	var rebalance struct {
		NoticeTime time.Time `json:"noticeTime"`
	}
	if there, err := s.get(ctx, awsRebalance, &rebalance); err != nil || !there {
		return nil, err
	}
	return &agentapi.Notice{Kind: agentapi.NoticeRebalance, Message: "EC2 recommends to rebalance"}, nil
}

// get reads one document; not found is that there is none.
func (s *awsNotices) get(ctx context.Context, path string, into any) (bool, error) {
	for fresh := false; ; fresh = true {
		if s.token == "" {
			code, _, text, err := s.call(ctx, http.MethodPut, awsSession, "X-aws-ec2-metadata-token-ttl-seconds", "21600")
			if err != nil {
				return false, err
			}
			if code != http.StatusOK || len(text) == 0 {
				return false, unexpected(awsSession, code)
			}
			s.token, fresh = string(text), true
		}
		code, _, text, err := s.call(ctx, http.MethodGet, path, "X-aws-ec2-metadata-token", s.token)
		switch {
		case err != nil:
			return false, err
		case code == http.StatusNotFound:
			return false, nil
		case code == http.StatusUnauthorized && !fresh: // The token has run out.
			s.token = ""
			continue
		case code != http.StatusOK || json.Unmarshal(text, into) != nil:
			s.token = ""
			return false, unexpected(path, code)
		}
		return true, nil
	}
}
