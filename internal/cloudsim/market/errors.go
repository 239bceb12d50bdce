package market

import "fmt"

// Code says why the market refused. Each façade puts it in its provider's words.
type Code string

// Refusals.
const (
	NoSuchOffer    Code = "no-such-offer"
	NoCapacity     Code = "no-capacity"
	BidTooLow      Code = "bid-too-low"
	NotForSale     Code = "not-for-sale"
	DiskTooLarge   Code = "disk-too-large"
	OverQuota      Code = "over-quota"
	NoBalance      Code = "no-balance"
	NoSuchInstance Code = "no-such-instance"
	ContractOver   Code = "contract-over"
	Refused        Code = "refused"
)

// Error is a refusal.
type Error struct {
	Code    Code
	Message string
}

// Error is for people.
func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

func refuse(c Code, format string, args ...any) *Error {
	return &Error{Code: c, Message: fmt.Sprintf(format, args...)}
}
