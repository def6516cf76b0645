package middleware

import "strings"

// CheckDataKey says whether a middleware may write a key of Context.Data
// (protocol §5.7): "_apcore." belongs to the framework, "ext.<vendor>." to
// extensions, and any key without a leading underscore to applications. warning
// is "" or says what is wrong with a use.
func CheckDataKey(framework bool, key string) (valid bool, warning string) {
	switch {
	case key == "":
		return false, "the key is empty"
	case strings.HasPrefix(key, "_apcore.") && !framework:
		return false, "_apcore. keys belong to the framework"
	case strings.HasPrefix(key, "ext.") && framework:
		return true, "ext. keys belong to extensions"
	}
	return true, ""
}
