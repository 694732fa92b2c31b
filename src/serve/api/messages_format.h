#pragma once

#include <memory>

#include "serve/api/chat_format.h"

namespace megalith::serve {

std::unique_ptr<ChatFormat> MakeMessagesFormat(AnswerHead head);

}  // namespace megalith::serve
