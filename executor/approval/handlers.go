package approval

import "context"

// AlwaysDeny rejects everything.
type AlwaysDeny struct{}

// AutoApprove approves everything; it is for development.
type AutoApprove struct{}

// Callback asks a function, which may block until ctx is done. It knows no
// tokens, so CheckApproval answers rejected.
type Callback func(ctx context.Context, r *Request) (*Result, error)

var (
	_ Handler = AlwaysDeny{}
	_ Handler = AutoApprove{}
	_ Handler = Callback(nil)
)

// RequestApproval rejects.
func (AlwaysDeny) RequestApproval(context.Context, *Request) (*Result, error) {
	return &Result{Status: Rejected, Reason: "always denied"}, nil
}

// CheckApproval rejects.
func (AlwaysDeny) CheckApproval(context.Context, string, *Request) (*Result, error) {
	return &Result{Status: Rejected, Reason: "always denied"}, nil
}

// RequestApproval approves.
func (AutoApprove) RequestApproval(context.Context, *Request) (*Result, error) {
	return &Result{Status: Approved, ApprovedBy: "auto"}, nil
}

// CheckApproval approves.
func (AutoApprove) CheckApproval(context.Context, string, *Request) (*Result, error) {
	return &Result{Status: Approved, ApprovedBy: "auto"}, nil
}

// RequestApproval asks the function.
func (f Callback) RequestApproval(ctx context.Context, r *Request) (*Result, error) { return f(ctx, r) }

// CheckApproval rejects.
func (Callback) CheckApproval(context.Context, string, *Request) (*Result, error) {
	return &Result{Status: Rejected, Reason: "this approval handler has no tokens"}, nil
}
