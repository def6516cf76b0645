package approval_test

import (
	"testing"

	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/executor/approval/approvaltest"
)

func TestMemStore(t *testing.T) {
	approvaltest.TestStore(t, nil, func(*testing.T) (approval.Store, func(*testing.T) approval.Store) {
		return approval.NewMemStore(0), nil
	})
}
