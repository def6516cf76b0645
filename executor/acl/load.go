package acl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/apbus/apbus/module"
)

// Parse reads a rule file from memory; name stands for it in errors, which also
// give line and key. Errors: ACL_RULE_ERROR, or CONFIG_INVALID for a bad audit
// block. Only the file's default_effect counts; o.DefaultEffect is ignored.
func Parse(name string, yaml []byte, o Options) (*Policy, error) {
	c, err := parse(name, yaml)
	if err != nil {
		return nil, err
	}
	p, err := newPolicy(o)
	if err != nil {
		return nil, err
	}
	p.install(c)
	return p, nil
}

// Load is [Parse] of a file, which [Policy.Reload] reads again. A missing file is
// CONFIG_NOT_FOUND.
func Load(path string, o Options) (*Policy, error) {
	c, err := parseFile(path)
	if err != nil {
		return nil, err
	}
	p, err := newPolicy(o)
	if err != nil {
		return nil, err
	}
	p.path = path
	p.install(c)
	return p, nil
}

// Reload reads the policy's file again and swaps rules, default effect and audit
// block in one step; rules added since are gone. With an error nothing changes.
// A policy that did not come from a file is ACL_RULE_ERROR.
func (p *Policy) Reload() error {
	if p.path == "" {
		return module.Errorf(module.CodeACLRuleError, "cannot reload: ACL was not loaded from a YAML file")
	}
	c, err := parseFile(p.path)
	if err != nil {
		return err
	}
	p.install(c)
	return nil
}

// DefaultRoot is where [Discover] looks when no root is configured.
const DefaultRoot = "./acl"

// fileInRoot is the rule file of a root that is a directory.
const fileInRoot = "global_acl.yaml"

// Discover finds the policy that a configuration means: root is acl.root
// ("" for [DefaultRoot]), relative to base, the configuration file's directory
// ("" for the working directory). A root that is a directory holds
// global_acl.yaml. When nothing is there, found is false and there is no ACL at
// all: none is invented, whatever the default effect (decision D-64).
func Discover(root, base string, o Options) (p *Policy, found bool, err error) {
	if root == "" {
		root = DefaultRoot
	}
	if !filepath.IsAbs(root) {
		root = filepath.Join(base, root)
	}
	info, err := os.Stat(root)
	if err == nil && info.IsDir() {
		root = filepath.Join(root, fileInRoot)
		_, err = os.Stat(root)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, module.Errorf(module.CodeConfigInvalid, "cannot look for ACL rules: %w", err)
	}
	p, err = Load(root, o)
	return p, err == nil, err
}

func parseFile(path string) (*content, error) {
	raw, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, module.Errorf(module.CodeConfigNotFound, "ACL file not found: %w", err).
			WithDetail("config_path", path)
	case err != nil:
		return nil, module.Errorf(module.CodeACLRuleError, "cannot read ACL file: %w", err)
	}
	return parse(path, raw)
}

func place(name string, line int) string {
	if line == 0 {
		return name
	}
	return fmt.Sprintf("%s:%d", name, line)
}
