"""Security: principals, their permissions, and the one question that every door asks."""

from sluicemq_broker.security import visible
from sluicemq_broker.security.acts import Act, Door, Outcome, Unchanged, plain
from sluicemq_broker.security.audit import Audit
from sluicemq_broker.security.authorize import (
    ANYBODY,
    Caller,
    Need,
    Principal,
    authorize,
    may_not,
    may_stay,
    may_use,
    named,
    require_known,
    with_hint,
)
from sluicemq_broker.security.guard import NOT_ADMITTED, DoorGuard
from sluicemq_broker.security.logins import LONGEST as LONGEST_LOGIN
from sluicemq_broker.security.logins import MOST_ENDED, Login, Logins
from sluicemq_broker.security.needs import NOTHING, Effect, Needs
from sluicemq_broker.security.passwords import LONGEST_PASSWORD, Busy, Passwords, hash_password
from sluicemq_broker.security.principals import (
    Principals,
    password_of,
    public_key_of,
    token_of,
)
from sluicemq_broker.security.rates import Limits, charge, pay_for_one, put_back, takes
from sluicemq_broker.security.security import Security
from sluicemq_broker.security.shared import Shared, SharedLogins, SharedPrincipals
