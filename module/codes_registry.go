package module

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// ReservedCodePrefixes returns the 14 prefixes that no module's own code may
// begin with (algorithm A17, FRAMEWORK_ERROR_CODE_PREFIXES). Framework codes
// outside them, such as CIRCUIT_BREAKER_OPEN and those of the bus, are reserved
// one by one.
func ReservedCodePrefixes() []string {
	return []string{
		"ACL_", "APPROVAL_", "BINDING_", "CALL_", "CIRCULAR_", "CONFIG_", "DEPENDENCY_",
		"ERROR_CODE_", "FUNC_", "GENERAL_", "MIDDLEWARE_", "MODULE_", "SCHEMA_", "VERSION_",
	}
}

// CodeRegistry knows which codes modules declare for themselves, so that one
// code never means two things (algorithm A17). The zero value is ready; it must
// not be copied. Safe for concurrent use.
type CodeRegistry struct {
	mu     sync.RWMutex
	owners map[Code]string
}

// NewCodeRegistry makes an empty registry.
func NewCodeRegistry() *CodeRegistry { return &CodeRegistry{} }

// Register declares codes of a module, all of them or none. A code that belongs
// to the framework, begins with a reserved prefix or is declared by another
// module fails with ERROR_CODE_COLLISION, whose details name module_id,
// error_code and reason ("framework", "prefix" or "module"), and owner for the
// last. A code that is not upper snake case, or no module ID, is
// GENERAL_INVALID_INPUT. Declaring one's own code again does nothing.
func (r *CodeRegistry) Register(moduleID string, codes ...Code) error {
	if moduleID == "" {
		return Errorf(CodeInvalidInput, "error codes need the module that declares them")
	}
	for _, c := range codes {
		if err := checkOwnCode(moduleID, c); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range codes {
		if owner, taken := r.owners[c]; taken && owner != moduleID {
			return codeCollision(moduleID, c, "module", "is declared by module "+owner).WithDetail("owner", owner)
		}
	}
	if r.owners == nil {
		r.owners = make(map[Code]string, len(codes))
	}
	for _, c := range codes {
		r.owners[c] = moduleID
	}
	return nil
}

// Unregister frees the codes of a module for others. One without codes is no
// error.
func (r *CodeRegistry) Unregister(moduleID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.owners, func(_ Code, owner string) bool { return owner == moduleID })
}

// Owner returns the module that declared c.
func (r *CodeRegistry) Owner(c Code) (moduleID string, ok bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	moduleID, ok = r.owners[c]
	return moduleID, ok
}

// All returns every code there is, the framework's and the modules', sorted.
func (r *CodeRegistry) All() []Code {
	all := slices.Collect(Codes())
	r.mu.RLock()
	all = slices.AppendSeq(all, maps.Keys(r.owners))
	r.mu.RUnlock()
	slices.Sort(all)
	return all
}

func checkOwnCode(moduleID string, c Code) error {
	if !upperSnake(string(c)) {
		return Errorf(CodeInvalidInput, "error code is not upper snake case").
			WithDetails(map[string]any{"module_id": moduleID})
	}
	if c.Known() {
		return codeCollision(moduleID, c, "framework", "belongs to the framework")
	}
	for _, p := range ReservedCodePrefixes() {
		if strings.HasPrefix(string(c), p) {
			return codeCollision(moduleID, c, "prefix", "begins with the reserved prefix "+p)
		}
	}
	return nil
}

func codeCollision(moduleID string, c Code, reason, why string) *Error {
	return Errorf(CodeErrorCodeCollision, "%s", fmt.Sprintf("error code %s of module %s %s", c, moduleID, why)).
		WithDetails(map[string]any{"module_id": moduleID, "error_code": string(c), "reason": reason})
}

// maxCodeLen bounds what is accepted as a code.
const maxCodeLen = 128

// upperSnake accepts [A-Z][A-Z0-9_]*.
func upperSnake(s string) bool {
	if s == "" || len(s) > maxCodeLen || s[0] < 'A' || s[0] > 'Z' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return true
}
